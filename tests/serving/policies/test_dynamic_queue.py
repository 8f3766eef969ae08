"""Batches of a dynamic model are chosen by who waits, and what they took is learnt from."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrarium.core.quantities import SECOND, Time
from astrarium.serving.contract import (
    BatchFinished,
    Dispatch,
    DynamicSpec,
    GpuLeft,
    ModelSpec,
    Network,
    Request,
    RequestArrived,
)
from astrarium.serving.ledger import Outcome
from astrarium.serving.level import run
from astrarium.serving.policies._times import FEWEST, LearntTimes, cdf, cdf_by_longest, grid
from astrarium.serving.policies.astrarium import Astrarium
from astrarium.serving.policies.astrarium.applications import Applications
from astrarium.serving.policies.astrarium.groups import SAFE
from astrarium.serving.policies.astrarium.queues import DynamicQueue
from astrarium.serving.report.summary import measured_requests
from astrarium.serving.scenario import Scenario, load
from astrarium.testing.serving.cases import cluster, linear_model
from tests.support.paths import ROOT
from tests.support.rival_runs import MS, SteppedPolicy, ms

EXAMPLES = ROOT / "examples"


def model(*times: float, c0: float = 10, c1: float = 0.1, slo: float = 100, max_batch: int = 4) -> ModelSpec:
    """One application for each time, which its requests always take; 0: nothing is known of it."""
    history = tuple((ms(time),) * FEWEST if time else () for time in times)
    table = linear_model(ms(5), ms(5), ms(slo), max_batch).latency
    return ModelSpec(0, "m", ms(slo), table, DynamicSpec(ms(c0), c1, history))


def learnt(of: ModelSpec) -> LearntTimes:
    return LearntTimes(of, bins=32, window=10 * SECOND, refresh=SECOND)


@given(times=st.lists(st.integers(1, 10**6), min_size=1, max_size=40), bins=st.integers(1, 32))
def test_where_every_time_was_seen_it_is_the_share_of_them(times: list[Time], bins: int) -> None:
    edges = grid(min(times), max(times), bins)
    assert cdf_by_longest([(time, 1) for time in times], edges) == pytest.approx(cdf(iter(times), edges))


@pytest.mark.parametrize("sizes", [(4, 4), (1, 9)])
def test_the_longest_of_many_batches_give_the_times_of_single_requests(sizes: tuple[int, int]) -> None:
    chance = np.random.default_rng(1)
    edges = list(range(0, 1001, 50))
    among = chance.integers(sizes[0], sizes[1] + 1, 4000).tolist()
    longest = [(int(chance.integers(0, 1000, size).max()), size) for size in among]
    chances = cdf_by_longest(longest, edges)
    assert chances[8:] == pytest.approx(list(np.linspace(0, 1, 21)[8:]), abs=0.03)  # below, few are seen
    assert cdf((time for time, _ in longest), edges)[10] < 0.4  # taken for single ones they are too long


def test_a_batch_of_one_application_is_learnt_from() -> None:
    times = learnt(model(0, 40))
    times.refreshed(0)
    for _ in range(FEWEST):
        times.finished(SECOND, [0, 0, 0], ms(10 + 0.1 * 3 * 20), SAFE)
    assert times.refreshed(3 * SECOND)
    assert times.time((0,), 3, 0.9) == pytest.approx(ms(16), rel=0.02)
    assert times.time((1,), 1, 0.9) == pytest.approx(ms(14), rel=0.01)


def test_a_batch_of_several_applications_does_not_tell_whose_time_it_took() -> None:
    times = learnt(model(20, 40))
    before = times.table((0,), 0.9), times.table((1,), 0.9)
    for _ in range(FEWEST):
        times.finished(SECOND, [0, 1], ms(90), SAFE)
    times.arrived(SECOND, 0)
    times.refreshed(SECOND)
    assert times.refreshed(3 * SECOND) is False
    assert (times.table((0,), 0.9), times.table((1,), 0.9)) == before


@pytest.mark.parametrize(("took", "at_once"), [(17, True), (11, False)])
def test_what_took_longer_than_planned_is_learnt_at_once(took: float, at_once: bool) -> None:
    """A batch of one takes 10 + 0.1 * 20 ms as far as is known."""
    times = learnt(model(20))
    times.arrived(0, 0)
    times.refreshed(0)
    times.finished(ms(50), [0], ms(took), SAFE)
    assert times.refreshed(ms(50)) is at_once


def test_who_is_unknown_stands_alone() -> None:
    """So that their batches tell something; queues that nobody may form anew stay what they are."""
    assert Applications(model(0, 0), learnt(model(0, 0)), "grouped").groups == [(0,), (1,)]
    assert Applications(model(0, 0), learnt(model(0, 0)), "model").groups == [(0, 1)]
    assert Applications(model(0, 9), learnt(model(0, 9)), "grouped").groups == [(0, 1)]


def queue(of: ModelSpec, waiting: Sequence[tuple[int, float]]) -> DynamicQueue:
    """*waiting*: application and deadline; the batch would be all of them."""
    filled = DynamicQueue(of, Network(), Astrarium.Parameters(), learnt(of))
    for id_, (application, due) in enumerate(waiting):
        filled.insert(Request(id_, 0, 0, ms(due), application))
    filled.size = len(waiting)
    return filled


def left(waiting: DynamicQueue) -> list[int]:
    return [request.id for request in waiting.pop_batch()]


def test_who_would_make_the_first_one_late_stays() -> None:
    """With the long one a batch of two takes 10 + 0.2 * 100, without it 10 + 0.3 * 10."""
    waiting = queue(model(10, 100), [(0, 20), (1, 60), (0, 70), (0, 80)])
    waiting.choose(0, 0)
    assert waiting.size == 3
    assert waiting.planned() == pytest.approx(ms(13), abs=MS)  # in bins of 3 ms
    assert left(waiting) == [0, 2, 3]
    assert [request.id for request in waiting.requests] == [1]
    assert waiting.deadlines == [ms(60)]


def test_everybody_leaves_who_fits_and_no_more_than_the_model_takes() -> None:
    waiting = queue(model(10, 100), [(0, 60), (1, 60), (0, 70), (0, 80), (0, 80)])
    waiting.choose(0, 0)
    assert left(waiting) == [0, 1, 2, 3]


def test_nobody_leaves_who_would_take_longer_in_company_than_alone() -> None:
    """The long one alone takes 11; it would make the three short ones, 1 + 0.3 * 10, take 1 + 0.4 * 100."""
    waiting = queue(model(10, 100, c0=1), [(0, 90), (0, 90), (0, 90), (1, 90), (0, 90)])
    waiting.choose(0, 0)
    assert left(waiting) == [0, 1, 2, 4]


def test_who_is_too_late_by_its_own_times_goes_as_planned() -> None:
    waiting = queue(model(10, 100), [(1, 15), (0, 70)])
    waiting.choose(0, 0)
    assert waiting.size == 2
    assert waiting.planned() == waiting.latency[2]
    assert left(waiting) == [0, 1]


@pytest.mark.parametrize("lookahead", [True, False])
def test_the_policy_sends_who_fits(lookahead: bool) -> None:
    at = SteppedPolicy("astrarium", cluster([model(10, 100)], 1), lookahead=lookahead, patience=0)
    arrivals = [RequestArrived(Request(id_, 0, 0, ms(21), int(id_ == 1))) for id_ in range(3)]
    assert at.hear(0, *arrivals)[0] == Dispatch(0, (0, 2), 0)


def test_batches_that_never_end_are_forgotten() -> None:
    at = SteppedPolicy("astrarium", cluster([model(10)], 2), patience=0)
    at.hear(0, RequestArrived(Request(0, 0, 0, ms(90), 0)))
    at.hear(1, RequestArrived(Request(1, 0, ms(1), ms(90), 0)))
    assert len(at.policy._running) == 2
    at.hear(2, GpuLeft(0))
    assert [batch.gpu for batch in at.policy._running.values()] == [1]
    at.hear(12, BatchFinished(1, at.state.gpus[1].batches[0].run, ms(1)))
    assert not at.policy._running


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("file", "changes"),
    [("cold_start.yaml", ["profiling.share=0"]), ("drift.yaml", []), ("drift.yaml", ["profiling.share=0"])],
)
def test_unknown_and_drifting_times_are_served_better_than_by_orloj(file: str, changes: list[str]) -> None:
    """The files name `orloj`."""

    def finish_rate(scenario: Scenario) -> float:
        record = run(scenario)
        return float(np.mean(record.requests.outcome[measured_requests(record)] == Outcome.IN_TIME))

    def rate(*policy: str) -> float:
        return mean(
            finish_rate(load(EXAMPLES / file, [*changes, *policy]).with_seed(seed)) for seed in (1, 2)
        )

    assert rate("policy={name: astrarium}") > rate() + 0.003


@pytest.mark.parametrize("start", [0, 100 * SECOND])
def test_what_is_known_beforehand_counts_as_heard_at_the_first_request(start: Time) -> None:
    of = model(20)
    queues = Applications(of, learnt(of), "grouped")
    queues.arrived(start, 0)
    queues.times.refreshed(start)
    planned = []
    for now in (start + 2 * SECOND, start + 11 * SECOND):
        for _ in range(FEWEST):
            queues.times.measured(now, 0, ms(10))
        queues.times.refreshed(now)
        planned.append(queues.table((0,))[1])
    assert planned == pytest.approx([ms(12), ms(11)], rel=0.01)
