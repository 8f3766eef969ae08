"""Every registered iteration policy passes the conformance suite, and those that should not do not."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import pytest

from astrarium.core.policy import SetTimer
from astrarium.core.quantities import MILLISECOND, Time
from astrarium.device.contract import (
    Action,
    Admit,
    Event,
    IterationFinished,
    IterationWanted,
    Job,
    JobArrived,
    Refuse,
    RunIteration,
)
from astrarium.device.lanes import Lane, Layout
from astrarium.device.policies import iteration_policies
from astrarium.device.state import DeviceState
from astrarium.device.world import DeviceWorld
from astrarium.testing.device import Case, CheckedState, DevicePolicyConformance
from tests.support.conformance import assert_caught, suites

globals().update(suites(DevicePolicyConformance, [(name, {}, {}) for name in iteration_policies.names()]))


class Plain:
    """One job after another, in order of arrival."""

    def decide(self, now: Time, events: Sequence[Event], state: DeviceState) -> Iterator[Action]:
        for job in list(state.waiting.values()):
            if self.needed(job) > state.layout.capacity:
                yield Refuse(job.id, f"it needs {self.needed(job)} bytes")
            elif not state.admitted:
                yield Admit(job.id)
        for lane in list(state.layout.lanes):
            yield from self.turn(lane, state)

    def needed(self, job: Job) -> int:
        return job.persistent + job.ephemeral

    def turn(self, lane: Lane, state: DeviceState) -> Iterator[Action]:
        ready = sorted(state.ready & lane.jobs.keys())
        if ready and state.idle(lane.id):
            yield RunIteration(ready[0])


class PlainSuite(DevicePolicyConformance):
    policy: ClassVar[type] = Plain
    pure_module = False  # this file imports random, for a policy that should not

    def make(self, *arguments: Any) -> Any:
        return self.policy()


class TestPlain(PlainSuite):
    """The policy that the faults are planted in is sound."""


class NeverRefuses(Plain):
    """Whoever does not fit waits for ever."""

    def decide(self, now: Time, events: Sequence[Event], state: DeviceState) -> Iterator[Action]:
        return (action for action in super().decide(now, events, state) if not isinstance(action, Refuse))


class RefusesTooMuch(Plain):
    def needed(self, job: Job) -> int:
        return 2 * super().needed(job)


class RefusesSilently(Plain):
    def decide(self, now: Time, events: Sequence[Event], state: DeviceState) -> Iterator[Action]:
        for action in super().decide(now, events, state):
            yield Refuse(action.job, "") if isinstance(action, Refuse) else action


class Overcommits(Plain):
    """Opens a lane for everybody, whether it fits or not."""

    def decide(self, now: Time, events: Sequence[Event], state: DeviceState) -> Iterator[Action]:
        for job in list(state.waiting):
            yield Admit(job)
        yield from super().decide(now, events, state)


class Dawdles(Plain):
    """Looks again a moment after an iteration has ended, instead of at once."""

    def decide(self, now: Time, events: Sequence[Event], state: DeviceState) -> Iterator[Action]:
        if any(isinstance(event, IterationFinished) for event in events):
            yield SetTimer(now + MILLISECOND, "later")
        else:
            yield from super().decide(now, events, state)


class IgnoresFailures(Plain):
    """Decides when somebody comes or comes back only: nobody else gets what a failed job leaves."""

    def decide(self, now: Time, events: Sequence[Event], state: DeviceState) -> Iterator[Action]:
        known = any(isinstance(event, JobArrived | IterationWanted) for event in events)
        return super().decide(now, events, state) if known else iter(())


class Meddles(Plain):
    """Writes into the books that a job is ready."""

    def turn(self, lane: Lane, state: DeviceState) -> Iterator[Action]:
        if state.idle(lane.id):
            state.ready.update(lane.jobs)
        yield from super().turn(lane, state)


class ThrowsDice(Plain):
    def decide(self, now: Time, events: Sequence[Event], state: DeviceState) -> Iterator[Action]:
        yield from super().decide(now, events, state)
        yield SetTimer(now + random.randrange(MILLISECOND), "dice") if state.admitted else SetTimer(now, "x")


class SharesACount(Plain):
    """Keeps a count on the class, so that two of its kind disturb each other."""

    turns = 0

    def decide(self, now: Time, events: Sequence[Event], state: DeviceState) -> Iterator[Action]:
        SharesACount.turns += 1
        yield from super().decide(now, events, state)
        if state.admitted and isinstance(events[0], JobArrived):
            yield SetTimer(now + SharesACount.turns, "count")


class TrustsEveryMessage(Plain):
    """Runs whoever is said to want it, whether the books know of it or not."""

    def decide(self, now: Time, events: Sequence[Event], state: DeviceState) -> Iterator[Action]:
        yield from super().decide(now, events, state)
        for event in events:
            if isinstance(event, IterationWanted) and not state.running:
                yield RunIteration(event.job)


class NeverSleeps(Plain):
    def decide(self, now: Time, events: Sequence[Event], state: DeviceState) -> Iterator[Action]:
        yield from super().decide(now, events, state)
        yield SetTimer(now + MILLISECOND, "again")


POLICIES_AT_FAULT: list[tuple[type, str]] = [
    (NeverRefuses, "test_everything_ends_once_and_the_books_hold"),
    (NeverRefuses, "test_what_can_never_fit_is_refused_and_holds_up_nobody"),
    (RefusesTooMuch, "test_everything_ends_once_and_the_books_hold"),
    (RefusesSilently, "test_what_can_never_fit_is_refused_and_holds_up_nobody"),
    (Overcommits, "test_everything_ends_once_and_the_books_hold"),
    (Dawdles, "test_no_lane_idles_while_a_job_of_it_is_ready"),
    (Dawdles, "test_a_job_alone_runs_at_once_and_unbroken"),
    (Dawdles, "test_jobs_that_do_not_pause_keep_the_gpu_busy"),
    (IgnoresFailures, "test_one_jobs_failure_is_its_own"),
    (Meddles, "test_it_reads_the_books_and_does_not_write"),
    (ThrowsDice, "test_the_same_case_is_decided_the_same"),
    (ThrowsDice, "test_a_recording_replays"),
    (SharesACount, "test_the_same_case_is_decided_the_same"),
    (SharesACount, "test_a_recording_replays"),
    (TrustsEveryMessage, "test_stale_news_is_harmless"),
    (NeverSleeps, "test_everything_ends_once_and_the_books_hold"),
]


@pytest.mark.parametrize(("policy", "test"), POLICIES_AT_FAULT)
def test_a_faulty_policy_is_caught(policy: type, test: str) -> None:
    assert_caught(type("Suite", (PlainSuite,), {"policy": policy}), test)


def test_a_policy_file_with_chance_in_it_is_caught() -> None:
    suite = type("Suite", (PlainSuite,), {"pure_module": True})
    assert_caught(suite, "test_its_file_imports_no_clock_chance_or_io")


class Unsafe(Layout):
    """Takes memory that jobs keep free."""

    @property
    def free(self) -> int:
        return self.capacity - sum(lane.size for lane in self.lanes)


class LosesService(CheckedState):
    def _finished(self, now: Time, event: IterationFinished) -> None:
        super()._finished(now, event)
        if event.run % 5 == 4:
            self.row(event.job).service -= 1


class ForgetsIterations(CheckedState):
    """Ends a job one iteration early, and counts that one as done."""

    def _finished(self, now: Time, event: IterationFinished) -> None:
        row = self.ledger.rows.get(event.job)
        if row is not None and row.done == row.job.iterations - 2:
            row.done += 1
        super()._finished(now, event)


class Overbooked(CheckedState):
    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.layout = Unsafe(capacity)


@pytest.mark.parametrize("books", [LosesService, ForgetsIterations])
def test_faulty_books_are_caught(books: type[CheckedState]) -> None:
    suite = type("Suite", (PlainSuite,), {"make_state": lambda self, case: books(case.capacity)})
    assert_caught(suite, "test_everything_ends_once_and_the_books_hold")


def test_memory_that_is_given_out_twice_is_caught() -> None:
    """With the books' own view of how much is free as wrong as the policy's."""

    class Packed(DevicePolicyConformance):
        policy = "pack"

        def make_state(self, case: Case) -> DeviceState:
            return Overbooked(case.capacity)

    assert_caught(Packed, "test_everything_ends_once_and_the_books_hold")


class FastWorld(DeviceWorld):
    """Runs iterations in half of their time."""

    def _iteration(self, now: Time, action: RunIteration, state: DeviceState) -> Any:
        for at, event in super()._iteration(now, action, state):
            yield (now + at) // 2, event


def test_a_faulty_world_is_caught() -> None:
    suite = type("Suite", (PlainSuite,), {"make_world": lambda self, case: FastWorld(case.switch)})
    assert_caught(suite, "test_everything_ends_once_and_the_books_hold")
