"""Deferred, eager and timeout batching: events in, exact actions out.

Most cases use the model of Symphony's section 3.3, l(b) = b + 5 with an SLO of 12 time units on three
GPUs, with a millisecond for the unit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrarium.core.engine import Engine
from astrarium.core.errors import InputError
from astrarium.core.policy import SetTimer, TimerFired
from astrarium.core.quantities import FOREVER, MILLISECOND
from astrarium.serving.contract import (
    EXPIRED,
    SACRIFICED,
    BatchFinished,
    Dispatch,
    Drop,
    Event,
    GpuJoined,
    GpuLeft,
    Network,
    Request,
    RequestArrived,
    Setup,
)
from astrarium.serving.ledger import Outcome
from astrarium.serving.policies._queue import ModelQueue
from astrarium.serving.policies.astrarium import Astrarium
from astrarium.serving.policies.window import Deferred, Eager, Timeout, timeout_for
from astrarium.serving.state import ServingState
from astrarium.testing.serving.cases import Case, Run, UnevenTruth, cluster, linear_model
from astrarium.testing.serving.strategies import NO_DELAY, cases
from tests.support.cases import run_case

UNIT = MILLISECOND
GAP = UNIT * 3 // 4


def units(number: float) -> int:
    return round(number * UNIT)


def example(gpus: int = 3, network: Network | None = None, slo: float = 12, max_batch: int = 80) -> Setup:
    return cluster([linear_model(UNIT, 5 * UNIT, units(slo), max_batch)], gpus, network)


def uniform(numbers: Iterable[int]) -> tuple[Request, ...]:
    """R_1, R_2, ... of the paper at 0.75 (i - 1), numbered from 0 here."""
    return tuple(Request(i - 1, 0, GAP * (i - 1), GAP * (i - 1) + 12 * UNIT) for i in numbers)


def at(*times: float, slo: float = 12) -> tuple[Request, ...]:
    return tuple(Request(i, 0, units(time), units(time + slo)) for i, time in enumerate(times))


def batches(run: Run) -> list[tuple[float, int, list[int]]]:
    """(start, GPU, the paper's numbers of its requests) for every batch."""
    ledger = run.state.ledger
    return [
        (
            started / UNIT,
            ledger.batch_gpu[run_],
            [i + 1 for i, batch in enumerate(ledger.batch) if batch == run_],
        )
        for run_, started in enumerate(ledger.batch_started)
    ]


def missed(run: Run) -> list[int]:
    outcome = run.state.ledger.outcome
    return [request.id + 1 for request in run.case.requests if outcome[request.id] != Outcome.IN_TIME]


def make(kind: type[Any], setup: Setup, **parameters: Any) -> Any:
    return kind(setup, kind.Parameters(**parameters))


class Stepper:
    """A policy and its books, one instant at a time."""

    def __init__(self, kind: type[Any], setup: Setup, **parameters: Any) -> None:
        self.engine: Engine[Any, Any, Any] = Engine(
            ServingState(setup), make(kind, setup, **parameters), validate=True
        )

    def __call__(self, now: float, *events: Event) -> list[Any]:
        return self.engine.step(units(now), events)


def arrived(id_: int, time: float, slo: float = 12) -> RequestArrived:
    return RequestArrived(Request(id_, 0, units(time), units(time + slo)))


@pytest.mark.parametrize("gather", ["window", "fcfs"])
def test_the_first_batch_of_the_paper_leaves_with_four_requests_at_2_25(gather: str) -> None:
    step = Stepper(Deferred, example(), gather=gather)
    assert step(0, arrived(0, 0)) == [SetTimer(units(12 - 7), "wake")]
    assert step(0.75, arrived(1, 0.75)) == [SetTimer(units(12 - 8), "wake")]
    assert step(1.5, arrived(2, 1.5)) == [SetTimer(units(12 - 9), "wake")]
    assert step(2.25, arrived(3, 2.25)) == [Dispatch(0, (0, 1, 2, 3), units(2.25)), SetTimer(FOREVER, "wake")]


@pytest.mark.parametrize("gather", ["window", "fcfs"])
def test_deferred_batching_staggers_the_gpus(gather: str) -> None:
    run = run_case(Case(example(), uniform(range(1, 81))), make(Deferred, example(), gather=gather))
    assert missed(run) == []
    expected = [(2.25 + 3 * n, n % 3, list(range(4 * n + 1, 4 * n + 5))) for n in range(20)]
    assert batches(run) == expected


@pytest.mark.parametrize("gather", ["window", "fcfs"])
def test_deferred_batching_recovers_from_three_missing_requests(gather: str) -> None:
    requests = uniform(i for i in range(1, 81) if i not in (13, 14, 15))
    run = run_case(Case(example(), requests), make(Deferred, example(), gather=gather))
    assert missed(run) == []
    regained = [(13.5 + 3 * n, n % 3, list(range(16 + 4 * n, 20 + 4 * n))) for n in range(16)]
    assert batches(run)[3:19] == regained


class EagerFromR16(Deferred):
    """Figure 5a: deferred until the missing requests, eager from R16 on."""

    def opens(self, queue: ModelQueue) -> int:
        return -FOREVER if queue.requests[0].arrival >= 15 * GAP else super().opens(queue)


def test_eager_batching_deteriorates_as_in_figure_5a() -> None:
    requests = uniform(i for i in range(1, 81) if i not in (13, 14, 15))
    run = run_case(Case(example(), requests), make(EagerFromR16, example(), gather="fcfs"))
    assert [(start, members) for start, _, members in batches(run)[3:8]] == [
        (11.25, [16]),
        (14.25, [17, 18, 19, 20]),
        (17.25, [21, 22, 23, 24]),
        (18.0, [25]),
        (23.25, [26, 27]),
    ]
    assert missed(run)[:3] == [35, 37, 38]
    assert all(len(members) == 1 for _, _, members in batches(run)[12:])


def test_a_full_batch_leaves_at_once() -> None:
    step = Stepper(Deferred, example(max_batch=2))
    step(0, arrived(0, 0))
    assert step(1, arrived(1, 1))[0] == Dispatch(0, (0, 1), units(1))


def test_a_batch_that_may_leave_waits_for_a_gpu_until_its_latest_start() -> None:
    step = Stepper(Deferred, example(gpus=1))
    step(0, GpuLeft(0), arrived(0, 0))
    assert step(5, TimerFired("wake")) == [SetTimer(units(6) + 1, "wake")]  # frontrun passed: now latest
    assert step(6, GpuJoined(0))[0] == Dispatch(0, (0,), units(6))


def test_a_batch_nobody_could_take_is_given_up_right_after_its_latest_start() -> None:
    step = Stepper(Deferred, example(gpus=1))
    step(0, GpuLeft(0), arrived(0, 0))
    step(5, TimerFired("wake"))
    assert step(6 + 1e-6, TimerFired("wake")) == [Drop(0, EXPIRED), SetTimer(FOREVER, "wake")]


def test_window_sacrifices_heads_for_the_target_size_and_fcfs_does_not() -> None:
    """Ten requests, SLO 30: alone the head would still be in time at t = 20, yet only in a small batch."""
    requests = [Request(0, 0, 0, units(30))] + [Request(i, 0, i, units(40)) for i in range(1, 11)]
    first = [RequestArrived(request) for request in requests]
    window, fcfs = (Stepper(Deferred, example(1, slo=30), gather=gather) for gather in ("window", "fcfs"))
    for step in (window, fcfs):
        step(0, GpuLeft(0), *first)
    assert Drop(0, SACRIFICED) in window(20, GpuJoined(0))
    assert fcfs(20, GpuJoined(0))[0] == Dispatch(0, (0, 1, 2, 3, 4), units(20))


@pytest.mark.parametrize("kind", [Deferred, Eager])
def test_the_smallest_free_gpu_is_taken(kind: type[Any]) -> None:
    step = Stepper(kind, example(gpus=4, max_batch=1))
    step(0, GpuLeft(1))
    assert [step(0, arrived(id_, 0))[0].gpu for id_ in range(3)] == [0, 2, 3]


def test_the_most_urgent_candidate_goes_first() -> None:
    models = [linear_model(UNIT, 5 * UNIT, 60 * UNIT, 8), linear_model(UNIT, 5 * UNIT, 50 * UNIT, 8)]
    step = Stepper(Eager, cluster(models, gpus=1))
    patient = RequestArrived(Request(0, 0, 0, units(60)))
    urgent = RequestArrived(Request(1, 1, 0, units(50)))
    assert [action.requests for action in step(0, patient, urgent)[:1]] == [(1,)]


def test_eager_sends_what_waits_as_soon_as_a_gpu_is_idle() -> None:
    step = Stepper(Eager, example(gpus=1))
    assert step(0, arrived(0, 0))[0] == Dispatch(0, (0,), 0)
    assert not any(isinstance(action, Dispatch) for action in step(1, arrived(1, 1), arrived(2, 1)))
    assert step(6, BatchFinished(0, 0, 0))[0] == Dispatch(0, (1, 2), units(6))


def test_timeout_sends_once_the_oldest_has_waited() -> None:
    step = Stepper(Timeout, example(), timeout="3ms")
    assert step(0, arrived(0, 0)) == [SetTimer(units(3), "wake")]
    assert step(2, arrived(1, 2)) == []
    assert step(3, TimerFired("wake"))[0] == Dispatch(0, (0, 1), units(3))


def test_a_timeout_longer_than_the_deadline_allows_ends_at_the_latest_start() -> None:
    step = Stepper(Timeout, example(), timeout="11ms")
    assert step(0, arrived(0, 0)) == [SetTimer(units(6), "wake")]
    assert step(6, TimerFired("wake"))[0] == Dispatch(0, (0,), units(6))


def test_a_timeout_of_zero_is_eager() -> None:
    requests = uniform(range(1, 41))
    eager = run_case(Case(example(), requests), make(Eager, example()))
    timeout = run_case(Case(example(), requests), make(Timeout, example(), timeout="0ms"))
    assert batches(timeout) == batches(eager)


@pytest.mark.parametrize(("text", "time"), [("10%", 4), ("3ns", 3), ("0%", 0)])
def test_a_timeout_is_a_duration_or_a_share_of_the_slo(text: str, time: int) -> None:
    assert timeout_for(text, 40) == time


@pytest.mark.parametrize("text", ["3", "-5%", "nan%", "soon", ""])
def test_a_timeout_that_is_neither_is_an_input_error(text: str) -> None:
    with pytest.raises(InputError, match="timeout"):
        timeout_for(text, 40)


def test_a_batch_is_ordered_early_enough_to_start_when_the_gpu_frees() -> None:
    network = Network(control=UNIT, data=UNIT // 2)
    setup = example(gpus=1, network=network, slo=40)
    run = run_case(Case(setup, at(0, 2, 3, slo=40)), make(Eager, setup))
    ledger = run.state.ledger
    assert [time / UNIT for time in ledger.batch_dispatched] == [0, 5.5]  # 7.5 less 1 + 2 / 2
    assert [time / UNIT for time in ledger.batch_started] == [1.5, 7.5]
    assert [time / UNIT for time in ledger.batch_finished] == [7.5, 14.5]


def test_deferred_orders_its_batch_a_network_delay_before_frontrun() -> None:
    network = Network(control=UNIT, data=UNIT // 4)
    step = Stepper(Deferred, example(network=network))
    # frontrun is 12 - l(2) - 0.25 for the input of a second request; the order takes 1 + 0.25
    assert step(0, arrived(0, 0)) == [SetTimer(units(12 - 7 - 0.25 - 1.25), "wake")]
    assert step(3.5, TimerFired("wake"))[0] == Dispatch(0, (0,), units(4.75))


def test_the_response_delay_makes_the_deadline_earlier() -> None:
    setup = example(network=Network(response=2 * UNIT))
    run = run_case(Case(setup, at(0)), make(Deferred, setup))
    assert batches(run) == [(3.0, 0, [1])]  # 12 - 2 - l(2)
    assert run.state.ledger.done[0] == units(3 + 6 + 2)


def test_delays_that_leave_no_room_drop_everything() -> None:
    setup = example(network=Network(control=4 * UNIT, data=UNIT, response=2 * UNIT))
    run = run_case(Case(setup, at(0, 1, 2)), make(Deferred, setup))
    assert missed(run) == [1, 2, 3]
    assert list(run.state.ledger.done) == [units(time) for time in (0, 1, 2)]  # at once: it was hopeless


def test_a_batch_too_late_for_the_gpu_that_frees_next_is_kept_for_another() -> None:
    """The claim for four requests comes before the one for a single request, which no longer fits there."""
    model = linear_model(UNIT, 5 * UNIT, 100 * UNIT, 80)
    step = Stepper(Eager, cluster([model, model], gpus=2, network=Network(data=UNIT)), gather="fcfs")
    step(0, *(arrived(id_, 0, slo=100) for id_ in range(7)))  # GPU 0 until 7 + l(7) = 19
    step(0, *(arrived(id_, 0, slo=100) for id_ in range(7, 15)))  # GPU 1 until 8 + l(8) = 21
    step(1, *(arrived(id_, 1, slo=100) for id_ in range(15, 19)))
    step(2, RequestArrived(Request(19, 1, units(2), units(24))))  # it must start by 18
    assert step(15, TimerFired("wake"))[:1] == [Dispatch(0, (15, 16, 17, 18), units(19))]
    assert step(16, BatchFinished(1, 1, units(8)))[:1] == [Dispatch(1, (19,), units(17))]


def test_a_gpu_that_overruns_its_estimate_gets_nothing_until_it_is_free() -> None:
    setup = example(gpus=1, slo=60)
    case = Case(setup, at(0, 1, slo=60), truth=UnevenTruth(setup, [200]))
    run = run_case(case, make(Eager, setup))
    ledger = run.state.ledger
    assert [time / UNIT for time in ledger.batch_dispatched] == [0, 12]
    assert [time / UNIT for time in ledger.batch_started] == [0, 12]


@pytest.mark.parametrize("kind", [Astrarium, Deferred, Eager, Timeout])
def test_overruns_of_batches_sent_ahead_do_not_add_up(kind: type[Any]) -> None:
    """Several batches are on their way at once, and each takes a fifth longer than planned."""
    setup = cluster([linear_model(0, UNIT, units(30), 8)], 1, Network(units(5), 0, 0))
    case = Case(setup, at(*(0.5 * i for i in range(1000)), slo=30), truth=UnevenTruth(setup, [120]))
    run = run_case(case, make(kind, setup))
    assert set(run.state.ledger.outcome) == {Outcome.IN_TIME}


def test_the_next_batch_leaves_by_when_the_last_one_ended_and_not_by_when_that_was_heard() -> None:
    step = Stepper(Eager, example(gpus=1, network=Network(control=4 * UNIT), slo=100, max_batch=1))
    step(0, *(arrived(id_, 0, slo=100) for id_ in range(3)))  # the first begins at 4 and is planned until 10,
    assert step(6, TimerFired("wake"))[0] == Dispatch(0, (1,), units(10))  # the second until 16
    step(11.9, BatchFinished(0, 0, units(4), units(11)))  # a unit late: now the second is expected until 17
    assert step(13, TimerFired("wake"))[0] == Dispatch(0, (2,), units(17))


class OnePerGpu(ServingState):
    """Books that complain when a GPU is sent a batch while it holds another."""

    def _dispatch(self, now: int, action: Dispatch) -> None:
        assert not self.gpus[action.gpu].batches, f"{action} at {now}"
        super()._dispatch(now, action)


@pytest.mark.parametrize("kind", [Astrarium, Deferred, Eager, Timeout])
@settings(max_examples=40, derandomize=True, deadline=None, database=None)
@given(case=cases(delays=st.just(NO_DELAY)), percents=st.lists(st.integers(20, 400), min_size=1, max_size=4))
def test_overruns_never_double_book_a_gpu(kind: type[Any], case: Case, percents: list[int]) -> None:
    wrong = Case(case.setup, case.requests, truth=UnevenTruth(case.setup, percents))
    run_case(wrong, make(kind, case.setup), state=OnePerGpu(case.setup))


def test_a_batch_that_ends_early_frees_its_gpu_early() -> None:
    setup = example(gpus=1, slo=60)
    case = Case(setup, at(0, 1, slo=60), truth=UnevenTruth(setup, [50]))
    run = run_case(case, make(Eager, setup))
    assert [time / UNIT for time in run.state.ledger.batch_started] == [0, 3]
