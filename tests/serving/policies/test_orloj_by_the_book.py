"""Orloj decides as Algorithm 4.1 would that looks at every request and every batch size, every time."""

from __future__ import annotations

from math import exp
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrarium.core.quantities import MILLISECOND as MS
from astrarium.core.quantities import SECOND
from astrarium.serving.contract import Dispatch, Drop, Request
from astrarium.serving.policies._times import BatchTime
from astrarium.serving.policies.orloj import Orloj
from astrarium.serving.policies.orloj.hull import HullQueue
from astrarium.serving.scenario import Scenario
from astrarium.serving.state import ServingState
from tests.support.naive_queue import NaiveQueue
from tests.support.orloj_runs import played, scenario

CASES = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 10_000),
        "rate": st.sampled_from([40, 90, 200]),
        "slo": st.sampled_from([60, 150, 400]),
        "gpus": st.integers(1, 2),
        "members": st.sampled_from(["mixture", "own"]),
        "order": st.sampled_from(["earliest", "latest"]),
        "b": st.sampled_from([1e-6, 1e-4, 1e-2, 0.1]),
        "network": st.sampled_from([{}, {"control": "100us", "data": "200us", "response": "1ms"}]),
        "history": st.sampled_from([0, 30, 300]),
    }
)
BOUNDED = settings(max_examples=15, derandomize=True, deadline=None, database=None)


def scenario_of(case: dict[str, Any]) -> Scenario:
    return scenario(
        case["seed"],
        case["rate"],
        case["slo"],
        gpus=case["gpus"],
        duration="1500ms",
        network=case["network"],
        profiling={"share": 0.3, "delay": "50ms", "history": case["history"]},
        policy={
            **{name: case[name] for name in ("members", "order", "b")},
            "refresh": "200ms",
            "window": "600ms",
            "bins": 12,
        },
    )


class ByTheBook(Orloj):
    """Checks every decision against Algorithm 4.1 computed from the beginning: all requests, all sizes."""

    pending: dict[int, Request]
    checked = 0

    def decide(self, now: int, events: Any, state: ServingState) -> Any:
        self.pending = state.waiting
        self.now = now
        for action in super().decide(now, events, state):
            if isinstance(action, Drop):
                request = state.waiting[action.request]
                assert not self.saving(request)
            yield action
        assert all(self.saving(request) for request in state.waiting.values())

    def time(self, request: Request, size: int) -> BatchTime:
        own = request.application if self.parameters.members == "own" else None
        return self._times[request.model].batch(size, own if self.setup.models[request.model].dynamic else 0)

    def left(self, request: Request, size: int) -> int:
        network = self.setup.network
        return request.deadline - self.now - network.delay(size) - network.response

    def saving(self, request: Request) -> list[int]:
        sizes = self._sizes(self.setup.models[request.model].max_batch)
        return [size for size in sizes if self.time(request, size).mean <= self.left(request, size)]

    def score(self, request: Request, size: int) -> float:
        time = self.time(request, size)
        left = self.left(request, size)
        rate = self.parameters.b / MS
        gain = 0.0
        for low, high, chance in zip(time.edges, time.edges[1:], time.chances, strict=False):
            if left >= low:
                reached = min(high, left)
                gain += chance * (exp(-rate * (left - reached)) - exp(-rate * (left - low))) / (high - low)
        return gain / rate / time.mean

    def _batch(self, now: int) -> tuple[int, ...]:
        queues: dict[tuple[int, int], list[Request]] = {}
        for request in self.pending.values():
            for size in self.saving(request):
                queues.setdefault((request.model, size), []).append(request)
        urgency = {
            (min(request.deadline for request in queue), -size, model): queue
            for (model, size), queue in queues.items()
            if len(queue) >= size
        }
        first = min(urgency)
        if self.parameters.order == "latest":  # of the same model
            first = max((key for key in urgency if key[2] == first[2]), key=lambda key: (key[0], -key[1]))
        queue = urgency[first]
        batch = super()._batch(now)
        assert len(batch) == -first[1]
        assert set(batch) <= {request.id for request in queue}
        self.compare(batch, queue, len(batch))
        return batch

    def compare(self, batch: tuple[int, ...], queue: list[Request], size: int) -> None:
        """The scores of the batch are the highest there are, in order, but for rounding."""
        scores = {request.id: self.score(request, size) for request in queue}
        best = sorted(scores.values(), reverse=True)[:size]
        assert [scores[id_] for id_ in batch] == pytest.approx(best, rel=1e-6, abs=1e-16)
        self.checked += 1


@BOUNDED
@given(case=CASES)
def test_every_decision_is_that_of_the_algorithm_as_it_is_written_down(case: dict[str, Any]) -> None:
    policy, _, steps = played(scenario_of(case), ByTheBook)
    assert policy.checked == sum(isinstance(action, Dispatch) for step in steps for action in step.actions)


class Naive(Orloj):
    queue = NaiveQueue


class CheckedQueue(HullQueue):
    """Asks everybody, too: who is best by the hull has the highest score, but for rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.naive = NaiveQueue()

    def insert(self, id: int, alpha: float, beta: float) -> None:
        super().insert(id, alpha, beta)
        self.naive.insert(id, alpha, beta)

    def remove(self, id: int) -> None:
        super().remove(id)
        self.naive.remove(id)

    def best(self, slope: float) -> int:
        best = super().best(slope)
        expected = self.naive.best(slope)
        alpha, beta = self.naive.points[best]
        rounding = 1e-12 * (abs(alpha) * slope + abs(beta))
        assert self.naive.score(best, slope) >= self.naive.score(expected, slope) - rounding
        return best


class Checked(Orloj):
    queue = CheckedQueue


@BOUNDED
@given(case=CASES)
def test_the_hull_finds_who_everybody_would_find(case: dict[str, Any]) -> None:
    world = scenario_of(case)
    _, _, steps = played(world, Checked)
    if case["b"] >= 1e-4:  # scores of a tiny rate are nearly equal: rounding may choose between them
        assert played(world, Naive)[2] == steps


class Impatient(Orloj):
    farthest = 1e-3  # with b = 1e-4 a new base every 10 ms


@BOUNDED
@given(case=CASES)
def test_moving_the_base_changes_no_decision(case: dict[str, Any]) -> None:
    world = scenario_of({**case, "b": 1e-4})
    _, _, often = played(world, Impatient)
    _, _, never = played(world)
    assert often == never


def test_the_base_moves_before_scores_overflow() -> None:
    case = scenario(policy={"b": 1.0}, rate=200, duration="3s")  # e^3000 if it did not
    policy, _, steps = played(case)
    assert policy._base > SECOND
    assert sum(isinstance(action, Dispatch) for step in steps for action in step.actions) > 50
