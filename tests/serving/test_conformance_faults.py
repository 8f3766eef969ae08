"""The suite must catch what it claims to catch: a sound policy passes, each planted fault does not."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import pytest

from astrarium.core.policy import SetTimer, TimerFired
from astrarium.core.quantities import MILLISECOND, SECOND, Time
from astrarium.run import simulate as driver
from astrarium.serving.contract import (
    EXPIRED,
    Action,
    BatchFinished,
    Dispatch,
    Drop,
    Event,
    Preempt,
    Request,
    RequestArrived,
    Setup,
)
from astrarium.serving.ledger import Fate
from astrarium.serving.state import Batch, ServingState
from astrarium.serving.world import ServingWorld
from astrarium.testing.serving import ServingPolicyConformance
from astrarium.testing.serving.cases import Case, cluster, linear_model, requests_at
from tests.support.conformance import assert_caught


class Plain:
    """Earliest deadline first, as many of its model as keep that deadline, to the first idle GPU."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.queue = list[Request]()

    def decide(self, now: Time, events: Sequence[Event], state: ServingState) -> Iterator[Action]:
        self.queue += [event.request for event in events if isinstance(event, RequestArrived)]
        self.queue.sort(key=lambda request: request.deadline)
        for request in [
            request for request in self.queue if self.finish(now, request.model, 1) > request.deadline
        ]:
            yield self.give_up(request)
        for gpu in self.free_gpus(state):
            if self.queue:
                yield self.send(now, gpu)

    def free_gpus(self, state: ServingState) -> list[int]:
        return [gpu.id for gpu in state.gpus if gpu.idle]

    def finish(self, now: Time, model: int, size: int) -> Time:
        network = self.setup.network
        return now + network.delay(size) + self.setup.models[model].latency[size] + network.response

    def give_up(self, request: Request) -> Action:
        self.queue.remove(request)
        return Drop(request.id, EXPIRED)

    def send(self, now: Time, gpu: int) -> Action:
        first = self.queue[0]
        mine = [request for request in self.queue if request.model == first.model]
        size = 1
        while size < len(mine) and self.finish(now, first.model, size + 1) <= first.deadline:
            size += 1
        self.queue = [request for request in self.queue if request not in mine[:size]]
        return Dispatch(gpu, tuple(request.id for request in mine[:size]))


class QueuesAhead:
    """A sound policy of another kind: everything leaves at once, in turn, and queues at the GPUs."""

    def __init__(self, setup: Setup) -> None:
        self.turn = 0

    def decide(self, now: Time, events: Sequence[Event], state: ServingState) -> Iterator[Action]:
        for request in list(state.waiting):
            present = [gpu.id for gpu in state.gpus if gpu.present]
            if present:
                self.turn += 1
                yield Dispatch(present[self.turn % len(present)], (request,))


class Impatient(Plain):
    """Sound, though wasteful: cancels a batch once when something more urgent waits."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.cancelled = set[int]()

    def decide(self, now: Time, events: Sequence[Event], state: ServingState) -> Iterator[Action]:
        yield from super().decide(now, events, state)
        for gpu in state.gpus:
            if self.queue and len(gpu.batches) == 1 and gpu.recovering < 0:
                yield from self.cancel(gpu.batches[0])

    def cancel(self, batch: Batch) -> Iterator[Action]:
        members = {request.id for request in batch.requests}
        urgent = self.queue[0].deadline < min(request.deadline for request in batch.requests)
        if urgent and not members & self.cancelled:
            self.cancelled |= members
            self.queue += batch.requests
            yield Preempt(batch.gpu)


class PlainSuite(ServingPolicyConformance):
    policy: ClassVar[type] = Plain
    pure_module = False  # this file imports random, for a policy that should not
    knows_lengths = False

    def make(self, *parameters: Any) -> Any:
        return self.policy(*parameters)


class TestPlain(PlainSuite):
    scales = True


class TestQueuesAhead(PlainSuite):
    policy = QueuesAhead
    drops_hopeless = False


class TestImpatient(PlainSuite):
    policy = Impatient

    def test_it_does_preempt(self) -> None:
        setup = cluster(
            [linear_model(MILLISECOND, 9 * MILLISECOND, 40 * MILLISECOND)], gpus=1, cost=MILLISECOND
        )
        patient = Request(0, 0, 0, 40 * MILLISECOND)
        hurried = Request(1, 0, MILLISECOND, 12 * MILLISECOND)
        ledger = self.observe(Case(setup, (patient, hurried))).state.ledger
        assert list(ledger.batch_fate) == [Fate.PREEMPTED, Fate.FINISHED, Fate.FINISHED]
        assert list(ledger.batch_finished) == [1 * MILLISECOND, 12 * MILLISECOND, 22 * MILLISECOND]


class LosesRequests(Plain):
    def send(self, now: Time, gpu: int) -> Action:
        if self.queue[0].id % 5 == 4:
            self.queue.pop(0)
        return super().send(now, gpu) if self.queue else SetTimer(0, "nothing")


class SendsTwice(Plain):
    def send(self, now: Time, gpu: int) -> Action:
        waiting = list(self.queue)
        action = super().send(now, gpu)
        self.queue = waiting if len(waiting) > 1 else self.queue
        return action


class DropsWithoutReason(Plain):
    def give_up(self, request: Request) -> Action:
        self.queue.remove(request)
        return Drop(request.id, "")


class AnswersLate(Plain):
    def finish(self, now: Time, model: int, size: int) -> Time:
        return super().finish(now, model, size) - 2 * MILLISECOND


class ForgetsTheNetwork(Plain):
    def finish(self, now: Time, model: int, size: int) -> Time:
        return now + self.setup.models[model].latency[size]


class ThrowsDice(Plain):
    def free_gpus(self, state: ServingState) -> list[int]:
        free = super().free_gpus(state)
        random.shuffle(free)
        return free


class RemembersYesterday(Plain):
    """Keeps its count on the class, so that a second policy starts where the first one stopped."""

    decided = 0

    def free_gpus(self, state: ServingState) -> list[int]:
        type(self).decided += 1
        return super().free_gpus(state)[:: -1 if self.decided % 2 else 1]


class PrefersSmallIndices(Plain):
    def send(self, now: Time, gpu: int) -> Action:
        self.queue.sort(key=lambda request: (request.model, request.deadline))
        return super().send(now, gpu)


class ChangesAtNoon(Plain):
    def free_gpus(self, state: ServingState) -> list[int]:
        free = super().free_gpus(state)
        return free[::-1] if self.queue and self.queue[0].arrival > 100 * SECOND else free


class HoldsADuration(Plain):
    def finish(self, now: Time, model: int, size: int) -> Time:
        return super().finish(now, model, size) + MILLISECOND


class TrustsEveryMessage(Plain):
    """Counts finished batches instead of asking the books which GPU is idle."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.free = {gpu.id for gpu in setup.gpus}

    def decide(self, now: Time, events: Sequence[Event], state: ServingState) -> Iterator[Action]:
        self.free |= {event.gpu for event in events if isinstance(event, BatchFinished)}
        for action in super().decide(now, events, state):
            if isinstance(action, Dispatch):
                self.free.discard(action.gpu)
            yield action

    def free_gpus(self, state: ServingState) -> list[int]:
        return sorted(self.free)


class TakesWhatWaits(Plain):
    """Takes requests out of the books by itself, and puts them back."""

    def free_gpus(self, state: ServingState) -> list[int]:
        for request in self.queue:
            state.waiting[request.id] = state.waiting.pop(request.id)
        return super().free_gpus(state)


class NeverSleeps(Plain):
    def decide(self, now: Time, events: Sequence[Event], state: ServingState) -> Iterator[Action]:
        yield from super().decide(now, events, state)
        yield SetTimer(now + MILLISECOND, "again")


class OneGpuOnly(Plain):
    def free_gpus(self, state: ServingState) -> list[int]:
        return [0] if state.gpus[0].idle else []


class MixesModels(Plain):
    def send(self, now: Time, gpu: int) -> Action:
        both = self.queue[:2]
        self.queue = self.queue[2:]
        return Dispatch(gpu, tuple(request.id for request in both))


POLICIES_AT_FAULT: list[tuple[type, str]] = [
    (LosesRequests, "test_light_load_of_one_model_is_answered_in_time"),
    (LosesRequests, "test_everything_ends_once_and_the_books_hold"),
    (SendsTwice, "test_everything_ends_once_and_the_books_hold"),
    (DropsWithoutReason, "test_everything_ends_once_and_the_books_hold"),
    (AnswersLate, "test_everything_ends_once_and_the_books_hold"),
    (AnswersLate, "test_a_hopeless_request_disturbs_nobody"),
    (ForgetsTheNetwork, "test_network_delays_are_allowed_for"),
    (ThrowsDice, "test_the_same_case_is_decided_the_same"),
    (ThrowsDice, "test_a_recording_replays"),
    (RemembersYesterday, "test_the_same_case_is_decided_the_same"),
    (RemembersYesterday, "test_a_recording_replays"),
    (TakesWhatWaits, "test_it_reads_the_books_and_does_not_write"),
    (PrefersSmallIndices, "test_relabelling_models_changes_nothing"),
    (ChangesAtNoon, "test_shifting_time_shifts_the_decisions"),
    (HoldsADuration, "test_slow_motion_gets_the_same_decisions"),
    (TrustsEveryMessage, "test_stale_news_is_harmless"),
    (TrustsEveryMessage, "test_a_gpu_that_leaves_fails_its_batch_with_a_reason"),
    (NeverSleeps, "test_nothing_to_do_nothing_done"),
    (OneGpuOnly, "test_a_gpu_that_joins_is_used"),
    (MixesModels, "test_a_burst_at_one_instant"),
]


@pytest.mark.parametrize(("policy", "test"), POLICIES_AT_FAULT)
def test_a_faulty_policy_is_caught(policy: type, test: str) -> None:
    suite = type("Suite", (PlainSuite,), {"policy": policy, "scales": True})
    assert_caught(suite, test)


def test_a_policy_that_takes_several_runs_of_a_batch_for_one_is_caught() -> None:
    suite = type("Suite", (PlainSuite,), {"knows_lengths": True})
    assert_caught(suite, "test_a_batch_of_unequal_lengths_may_be_several_runs")


def test_a_policy_file_with_chance_in_it_is_caught() -> None:
    suite = type("Suite", (PlainSuite,), {"pure_module": True})
    assert_caught(suite, "test_its_file_imports_no_clock_chance_or_io")


class ForgetsTheBatch(ServingState):
    def _batch_finished(self, now: Time, event: BatchFinished) -> None:
        if event.run % 7 != 6:
            super()._batch_finished(now, event)
        else:
            self._take_batch(now, event.gpu, event.run)


class LosesWaiting(ServingState):
    """The request is gone, and the count of the ended hides it from validate()."""

    def _request_arrived(self, now: Time, event: RequestArrived) -> None:
        super()._request_arrived(now, event)
        if event.request.id % 9 == 8:
            del self.waiting[event.request.id]
            self._ended += 1


class WrongBusyTime(ServingState):
    def _batch_finished(self, now: Time, event: BatchFinished) -> None:
        run = event.run
        started = event.started
        super()._batch_finished(now, event)
        if run < len(self.ledger.batch_fate) and self.ledger.batch_fate[run] == Fate.FINISHED:
            self.ledger.end_batch(run, Fate.FINISHED, started - 1, now)


class FastWorld(ServingWorld):
    """Runs every batch as if it were one request."""

    def _run(self, now: Time, batch: Batch) -> tuple[Time, Event]:
        smaller = Batch(batch.run, batch.model, batch.gpu, batch.requests[:1], batch.start)
        return super()._run(now, smaller)


class CrowdedWorld(ServingWorld):
    """Runs the batches of a GPU at the same time."""

    def _run(self, now: Time, batch: Batch) -> tuple[Time, Event]:
        self._free[batch.gpu] = 0
        return super()._run(now, batch)


@pytest.mark.parametrize("books", [ForgetsTheBatch, LosesWaiting, WrongBusyTime])
def test_faulty_books_are_caught(books: type[ServingState]) -> None:
    suite = type("Suite", (PlainSuite,), {"make_state": lambda self, case: books(case.setup)})
    assert_caught(suite, "test_everything_ends_once_and_the_books_hold")


@pytest.mark.parametrize("world", [FastWorld, CrowdedWorld])
def test_a_faulty_world_is_caught(world: type[ServingWorld]) -> None:
    def make_world(self: ServingPolicyConformance, case: Case) -> ServingWorld:
        return world(case.setup, case.exact)

    suite = type(
        "Suite", (TestQueuesAhead if world is CrowdedWorld else PlainSuite,), {"make_world": make_world}
    )
    assert_caught(suite, "test_everything_ends_once_and_the_books_hold")


class SetsAgain(Plain):
    """Moves its alarm with every request; only the last setting may ring."""

    def decide(self, now: Time, events: Sequence[Event], state: ServingState) -> Iterator[Action]:
        yield from super().decide(now, events, state)
        if not isinstance(events[0], TimerFired):
            yield SetTimer(now + 5 * MILLISECOND, "alarm")


def test_a_driver_with_stale_timers_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    class AnyTimer(dict[str, Time]):
        """Whatever was ever set counts as set."""

        run: Any = None

        def get(self, name: str, default: Any = None) -> Any:
            return self.run.now

    class StaleRun(driver._Run):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self._timers = AnyTimer()
            self._timers.run = self

    suite = type("Suite", (PlainSuite,), {"policy": SetsAgain})()
    suite.observe(several_requests())
    monkeypatch.setattr(driver, "_Run", StaleRun)
    with pytest.raises((AssertionError, KeyError)):
        suite.observe(several_requests())


def several_requests() -> Case:
    setup = cluster([linear_model(MILLISECOND, MILLISECOND, 30 * MILLISECOND)], gpus=2)
    return Case(setup, requests_at(setup, [(n * MILLISECOND, 0) for n in range(6)]))
