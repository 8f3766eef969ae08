"""Every registered tuning policy passes the conformance suite, and those that should not do not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from astrarium.core.errors import BrokenBooks, InvalidAction
from astrarium.testing.tuning import TuningPolicyConformance
from astrarium.tuning.contract import Action, Put
from astrarium.tuning.policies import TuningPolicy, tuning_policies
from astrarium.tuning.runtime import Place
from astrarium.tuning.state import TuningState


@pytest.mark.parametrize("name", tuning_policies.names(), scope="class")
class TestEveryPolicy(TuningPolicyConformance):
    @pytest.fixture(autouse=True)
    def named(self, name: str) -> None:
        self.name = name

    def make(self) -> TuningPolicy:
        factory = tuning_policies.get(self.name)
        return factory(factory.Parameters())  # type: ignore[attr-defined]


class Crowding:
    """All on the first GPU."""

    def decide(self, now: int, events: Any, state: TuningState) -> Iterator[Action]:
        for row in state.waiting():
            yield Put(row.trial.id, Place((0,)))


class Lazy:
    """Only the first of all."""

    def decide(self, now: int, events: Any, state: TuningState) -> Iterator[Action]:
        for row in state.waiting():
            if row.trial.id == 0 and state.strips.idle:
                yield Put(0, Place((state.strips.idle[0],)))


class Meddling:
    """Writes into the books."""

    def decide(self, now: int, events: Any, state: TuningState) -> Iterator[Action]:
        for row in state.waiting():
            row.reason = "mine"
        for row in state.waiting():
            if state.strips.idle:
                yield Put(row.trial.id, Place((state.strips.idle[0],)))


class Moody:
    """Remembers what others of its kind have done."""

    count = 0

    def decide(self, now: int, events: Any, state: TuningState) -> Iterator[Action]:
        Moody.count += 1
        for row in state.waiting():
            idle = state.strips.idle
            if idle:
                yield Put(row.trial.id, Place((idle[Moody.count % len(idle)],)))


@pytest.mark.parametrize(
    ("policy", "test", "error"),
    [
        (Crowding, "test_every_trial_ends_and_no_gpu_is_given_out_twice", (InvalidAction, BrokenBooks)),
        (Crowding, "test_nobody_waits_while_there_are_gpus_for_all", (InvalidAction, BrokenBooks)),
        (Lazy, "test_every_trial_ends_and_no_gpu_is_given_out_twice", AssertionError),
        (Lazy, "test_gpus_may_come_and_go", AssertionError),
        (Lazy, "test_nobody_waits_while_there_are_gpus_for_all", AssertionError),
        (Meddling, "test_it_asks_and_does_not_touch", AssertionError),
        (Moody, "test_the_same_case_is_decided_the_same", AssertionError),
        (Moody, "test_a_recording_replays", AssertionError),
    ],
)
def test_the_suite_finds_what_is_wrong(policy: Any, test: str, error: Any) -> None:
    class Tested(TuningPolicyConformance):
        def make(self) -> TuningPolicy:
            return policy()  # type: ignore[no-any-return]

    with pytest.raises(error):
        getattr(Tested(), test)()
