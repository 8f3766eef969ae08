"""Every registered tuning policy passes the conformance suite, and those that should not do not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from astrarium.testing.tuning import TuningPolicyConformance
from astrarium.tuning.contract import Action, Put
from astrarium.tuning.policies import tuning_policies
from astrarium.tuning.runtime import Place
from astrarium.tuning.state import TuningState
from tests.support.conformance import assert_caught, suites

globals().update(suites(TuningPolicyConformance, [(name, {}, {}) for name in tuning_policies.names()]))


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
    ("policy", "test"),
    [
        (Crowding, "test_everything_ends_once_and_the_books_hold"),
        (Crowding, "test_nobody_waits_while_there_are_gpus_for_all"),
        (Lazy, "test_everything_ends_once_and_the_books_hold"),
        (Lazy, "test_gpus_may_come_and_go"),
        (Lazy, "test_nobody_waits_while_there_are_gpus_for_all"),
        (Meddling, "test_it_reads_the_books_and_does_not_write"),
        (Moody, "test_the_same_case_is_decided_the_same"),
        (Moody, "test_a_recording_replays"),
    ],
)
def test_the_suite_finds_what_is_wrong(policy: type, test: str) -> None:
    class Tested(TuningPolicyConformance):
        def make(self, *arguments: Any) -> Any:
            return policy()

    assert_caught(Tested, test)
