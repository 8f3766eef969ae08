"""Gathering a batch, and the size it should have: against brute force over every choice."""

from __future__ import annotations

from fractions import Fraction
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrarium.core.quantities import FOREVER, MILLISECOND, SECOND
from astrarium.serving.contract import ModelSpec, Network, Request, latency_table
from astrarium.serving.policies._queue import Backlog, ModelQueue
from astrarium.serving.policies._rates import BIN
from astrarium.testing.serving.cases import linear_model

BOUNDED = settings(max_examples=300, derandomize=True, deadline=None, database=None)


class Gathering:
    """A queue and a profile, with every feasible (heads dropped, batch size) listed."""

    def __init__(self, deadlines: list[int], latency: list[int], delay: int, now: int, free: int) -> None:
        self.deadlines = sorted(deadlines)
        self.latency = latency_table(list(accumulate(latency)))
        self.ready = [delay * size + time for size, time in enumerate(self.latency)]
        self.now = now
        self.free = free

    def finish(self, size: int) -> int:
        return max(self.now + self.ready[size], self.free + self.latency[size])

    def feasible(self) -> list[tuple[int, int]]:
        waiting = len(self.deadlines)
        largest = len(self.latency) - 2
        return [
            (drop, size)
            for drop in range(waiting)
            for size in range(1, min(waiting - drop, largest) + 1)
            if self.finish(size) <= self.deadlines[drop]
        ]

    def fewest_dropped_for(self, goal: int) -> tuple[int, int]:
        """As few heads as allow a batch of *goal*, and then as many requests as they allow."""
        drop = min(drop for drop, size in self.feasible() if size == goal)
        return drop, max(size for at, size in self.feasible() if at == drop)

    @property
    def backlog(self) -> Backlog:
        return Backlog(self.deadlines, self.ready, self.latency)


gatherings = st.builds(
    Gathering,
    deadlines=st.lists(st.integers(0, 60), max_size=12),
    latency=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    delay=st.integers(0, 3),
    now=st.integers(0, 30),
    free=st.integers(0, 40),
)


@BOUNDED
@given(gathering=gatherings)
def test_fcfs_drops_only_the_hopeless_and_then_takes_all_it_can(gathering: Gathering) -> None:
    feasible = gathering.feasible()
    expected = gathering.fewest_dropped_for(1) if feasible else (len(gathering.deadlines), 0)
    assert gathering.backlog.gather_fcfs(1, gathering.now, gathering.free) == expected


@BOUNDED
@given(gathering=gatherings, target=st.integers(1, 12))
def test_window_drops_as_few_as_allow_the_target_or_the_best(gathering: Gathering, target: int) -> None:
    feasible = gathering.feasible()
    if feasible:
        best = max(size for _, size in feasible)
        expected = gathering.fewest_dropped_for(min(target, best))
    else:
        expected = len(gathering.deadlines), 0
    assert gathering.backlog.gather_window(target, gathering.now, gathering.free) == expected


@pytest.mark.parametrize("gather", [Backlog.gather_fcfs, Backlog.gather_window])
@pytest.mark.parametrize(
    ("deadlines", "expected"),
    [
        ([], (0, 0)),  # nothing waits
        ([9], (1, 0)),  # hopeless by one
        ([10], (0, 1)),  # exactly in time
        ([9, 10, 10], (1, 1)),
        ([20] * 9, (0, 3)),  # never more than the largest batch
    ],
)
def test_edges(gather: object, deadlines: list[int], expected: tuple[int, int]) -> None:
    latency = latency_table([10, 11, 12])
    assert gather(Backlog(deadlines, latency, latency), 5, 0, 0) == expected  # type: ignore[operator]


def test_window_gives_up_heads_that_fcfs_keeps() -> None:
    latency = latency_table([10, 11, 12, 13])
    backlog = Backlog([10, 10, 13, 13, 13, 13], latency, latency)
    assert backlog.gather_fcfs(4, 0, 0) == (0, 1)
    assert backlog.gather_window(4, 0, 0) == (2, 4)
    assert backlog.gather_window(1, 0, 0) == (0, 1)


def metered(model: ModelSpec, network: Network, count: int, bins: int) -> ModelQueue:
    """A queue that has seen *count* requests in its first *bins* bins, and one after that."""
    queue = ModelQueue(model, network, "window")
    for number in range(count):
        at = number * bins * BIN // count
        queue.push(at, Request(number, 0, at, FOREVER))
    queue.push(bins * BIN, Request(count, 0, bins * BIN, FOREVER))
    return queue


def staggered_by_definition(model: ModelSpec, network: Network, rate: Fraction) -> int:
    """Symphony: largest b with l(b) (1 + 1/n) within the budget, n = max(1, rate l(b) / b) GPUs; where one
    GPU is more than enough, gathering takes b / rate instead."""
    best = 1
    for size in range(1, model.max_batch + 1):
        budget = model.slo - network.control - network.response - network.data * size
        gpus = rate * model.latency[size] / size
        queueing = model.latency[size] / gpus if gpus > 1 else size / rate
        if model.latency[size] + queueing <= budget:
            best = size
    return best


@settings(max_examples=60, derandomize=True, deadline=None, database=None)
@given(
    alpha=st.integers(1, 5 * MILLISECOND),
    beta=st.integers(1, 15 * MILLISECOND),
    slo=st.integers(5 * MILLISECOND, 200 * MILLISECOND),
    network=st.builds(
        Network, st.integers(0, MILLISECOND), st.integers(0, MILLISECOND), st.integers(0, 2 * MILLISECOND)
    ),
    count=st.integers(1, 200),
    bins=st.integers(1, 3),
)
def test_the_target_is_the_staggered_optimum(
    alpha: int, beta: int, slo: int, network: Network, count: int, bins: int
) -> None:
    model = linear_model(alpha, beta, slo, max_batch=24)
    queue = metered(model, network, count, bins)
    rate = Fraction(count, bins * BIN)
    assert queue._target == staggered_by_definition(model, network, rate)


def test_a_target_that_fits_exactly_is_taken() -> None:
    """One request a millisecond and l(b) = b + 5: gathering ten and running them takes the whole 25."""
    model = linear_model(MILLISECOND, 5 * MILLISECOND, 25 * MILLISECOND)
    assert metered(model, Network(), count=50, bins=1)._target == 10


def test_before_the_first_sample_the_target_is_what_fits_in_half_the_slo_less_two_ms() -> None:
    model = linear_model(MILLISECOND, 5 * MILLISECOND, 25 * MILLISECOND)
    assert ModelQueue(model, Network(), "window")._target == 5  # l(5) = 10 <= 10.5 < l(6)


def test_the_queue_is_kept_in_order_of_deadline_and_then_of_arrival() -> None:
    queue = ModelQueue(linear_model(1, 1, SECOND), Network(response=2), "window")
    for id_, deadline in enumerate([50, 30, 50, 10, 30]):
        queue.push(0, Request(id_, 0, 0, deadline))
    assert [request.id for request in queue.requests] == [3, 1, 4, 0, 2]
    assert queue.deadlines == [8, 28, 28, 48, 48]
