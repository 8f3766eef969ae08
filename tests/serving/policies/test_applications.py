"""The applications of a dynamic model stand in queues of alike times, which change with what is learnt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrarium.core.quantities import FOREVER, SECOND, Time
from astrarium.serving.contract import (
    DynamicSpec,
    Event,
    GpuJoined,
    GpuLeft,
    ModelSpec,
    Request,
    RequestArrived,
    RequestProfiled,
)
from astrarium.serving.policies._rates import BIN, BINS, RateMeter
from astrarium.serving.policies._times import LearntTimes, quantile
from astrarium.serving.policies.astrarium import Astrarium
from astrarium.serving.policies.astrarium.applications import Applications
from astrarium.serving.policies.astrarium.groups import SAFE, Group, cheapest_cut
from astrarium.testing.serving.audit import audit
from astrarium.testing.serving.cases import Case, cluster, linear_model
from astrarium.testing.serving.outcomes import all_in_time
from tests.support.cases import run_case
from tests.support.rival_runs import MS, SteppedPolicy, ms


def model(*means: float, slo: float = 200, c0: float = 2, c1: float = 0.2, max_batch: int = 8) -> ModelSpec:
    """One application for each mean; single times lie within a twentieth of it."""
    history = tuple(tuple(ms(mean * (0.95 + 0.01 * step)) for step in range(11)) for mean in means)
    table = linear_model(ms(c1 * 10), ms(c0), ms(slo), max_batch).latency
    return ModelSpec(0, "m", ms(slo), table, DynamicSpec(ms(c0), c1, history))


def applications(of: ModelSpec, lines: str = "grouped") -> Applications:
    return Applications(of, LearntTimes(of, bins=32, window=60 * SECOND, refresh=SECOND), lines)


def attended(
    of: ModelSpec, rates: Sequence[float], seconds: float = 2.0, lines: str = "grouped"
) -> Applications:
    """After so many requests per second of each application, evenly."""
    queues = applications(of, lines)
    came = [
        (round(number * SECOND / rate), place)
        for place, rate in enumerate(rates)
        for number in range(int(rate * seconds))
    ]
    for at, place in sorted(came):
        queues.arrived(at, place)
    queues.times.refreshed(round(seconds * SECOND))
    return queues


def partitions(ranked: Sequence[int]) -> Iterator[list[Group]]:
    """Every way to cut a row into neighbourhoods."""
    if not ranked:
        yield []
    for size in range(1, len(ranked) + 1):
        for rest in partitions(ranked[size:]):
            yield [tuple(sorted(ranked[:size])), *rest]


@given(data=st.data(), count=st.integers(1, 7))
def test_the_cut_is_the_best_of_all(data: st.DataObject, count: int) -> None:
    ranked = data.draw(st.permutations(range(count)))
    every = list(partitions(ranked))
    assert len(every) == 2 ** (count - 1)
    groups = sorted({group for cut in every for group in cut})
    prices = data.draw(st.lists(st.integers(0, 9), min_size=len(groups), max_size=len(groups)))
    cost = dict(zip(groups, map(float, prices), strict=True))
    best_cut = cheapest_cut(ranked, cost.__getitem__)
    assert best_cut in every
    best = min((sum(map(cost.__getitem__, cut)), len(cut)) for cut in every)
    assert (sum(map(cost.__getitem__, best_cut)), len(best_cut)) == best


def test_at_first_all_stand_together_unless_told_apart() -> None:
    three = model(4, 8, 40)
    assert applications(three).groups == [(0, 1, 2)]
    assert applications(three, "model").groups == [(0, 1, 2)]
    assert applications(three, "application").groups == [(0,), (1,), (2,)]


@pytest.mark.parametrize("rate", [1, 20, 200])
def test_alike_applications_stay_together(rate: float) -> None:
    queues = attended(model(10, 10.2, 9.9), [rate] * 3)
    assert not queues.regroup(2 * SECOND)
    assert queues.groups == [(0, 1, 2)]


@pytest.mark.parametrize("rate", [20, 200])
def test_ten_times_as_long_stands_apart(rate: float) -> None:
    """By mean time, not by number."""
    queues = attended(model(40, 4, 40, 4), [rate] * 4)
    assert queues.regroup(2 * SECOND)
    assert queues.groups == [(1, 3), (0, 2)]
    assert not queues.regroup(2 * SECOND)  # there is nothing left to gain


def test_few_long_ones_among_short_are_not_worth_a_line_if_launches_cost_more() -> None:
    """A launch of 30 ms, and hardly more for a request that is three times as long."""
    queues = attended(model(4, 12, c0=30, c1=0.05, slo=300), [30, 30])
    assert not queues.regroup(2 * SECOND)
    assert queues.groups == [(0, 1)]


@pytest.mark.parametrize("rates", [(218, 215, 281, 129), (230, 6, 136, 218), (33, 47, 91, 13)])
def test_equal_applications_share_a_line_whatever_their_rates(rates: Sequence[float]) -> None:
    """What separate queues would seem to save here is rounding."""
    queues = attended(model(4, 40, 4, 40), rates)
    assert queues.regroup(2 * SECOND)
    assert queues.groups == [(0, 2), (1, 3)]


def test_lines_come_together_again_when_the_times_do() -> None:
    queues = attended(model(4, 40), [100, 100])
    assert queues.regroup(2 * SECOND)
    assert queues.groups == [(0,), (1,)]
    for number in range(2000):
        queues.times.measured(2 * SECOND + number, 1, ms(4))
        queues.times.measured(2 * SECOND + number, 0, ms(4))
    later = 80 * SECOND
    for step in range(500):
        queues.arrived(later + step * 10 * MS, step % 2)
    assert queues.times.refreshed(later + 5 * SECOND)
    assert queues.regroup(later + 5 * SECOND)
    assert queues.groups == [(0, 1)]


@pytest.mark.parametrize("lines", ["application", "model"])
def test_fixed_queues_never_change(lines: str) -> None:
    queues = attended(model(4, 40, 4.1), [100, 100, 100], lines=lines)
    before = list(queues.groups)
    assert not queues.regroup(2 * SECOND)
    assert queues.groups == before


def test_before_anybody_has_come_nothing_is_worth_moving_for() -> None:
    assert not applications(model(4, 40)).regroup(0)


def test_one_application_has_nothing_to_cut() -> None:
    queues = attended(model(4), [100])
    assert not queues.regroup(2 * SECOND)
    assert queues.groups == [(0,)]


def test_a_group_is_planned_with_a_time_that_most_batches_keep() -> None:
    """As many as promised, of batches drawn from the same samples."""
    singles = [tuple(range(ms(low), ms(high), 20_000)) for low, high in ((3, 9), (20, 45))]
    table = linear_model(MS, MS, 200 * MS, 8).latency
    queues = attended(ModelSpec(0, "m", 200 * MS, table, DynamicSpec(ms(2), 0.2, tuple(singles))), [150, 50])
    planned = queues.table((0, 1))
    chance = np.random.default_rng(1)
    assert (planned[0], planned[-1], len(planned)) == (0, FOREVER, len(table))
    assert planned == sorted(planned)
    short, long = (chance.choice(times, (20_000, 8)) for times in singles)
    drawn = np.where(chance.random(short.shape) < 0.75, short, long)
    for size in range(1, 9):
        took = ms(2) + 0.2 * size * drawn[:, :size].max(axis=1)
        assert float((took <= planned[size]).mean()) == pytest.approx(SAFE, abs=0.02), size


def test_a_line_of_short_requests_is_planned_with_short_times() -> None:
    queues = attended(model(4, 40), [100, 100])
    assert queues.table((0,))[4] == pytest.approx(
        ms(2 + 0.2 * 4 * 4), rel=0.2
    )  # in bins of more than a millisecond
    assert queues.table((1,))[4] == pytest.approx(ms(2 + 0.2 * 4 * 40), rel=0.1)


def test_without_samples_the_table_of_the_model_is_believed() -> None:
    table = linear_model(ms(3), ms(5), ms(100), 4).latency
    cold = ModelSpec(0, "m", ms(100), table, DynamicSpec(0, 1.0, ((), ())))
    assert applications(cold).table((0,)) == list(table)


def test_too_few_samples_of_a_group_stand_back_for_all() -> None:
    known = model(4, 40)
    assert known.dynamic is not None
    history = (known.dynamic.history[0], known.dynamic.history[1][:9])
    scarce = applications(ModelSpec(0, "m", known.slo, known.latency, DynamicSpec(ms(2), 0.2, history)))
    assert scarce.table((1,))[1] > 3 * scarce.table((0,))[1]  # some of all are long
    assert scarce.times.mixture((1,)) == scarce.times.mixture(()) != scarce.times.mixture((0,))


def test_a_mixture_weighs_by_traffic() -> None:
    queues = attended(model(4, 40), [300, 100])
    below = queues.times.mixture((0, 1))
    assert below[len(below) // 2] == pytest.approx(601 / 802)  # one more of each than has come
    assert queues.times.mixture((0,))[len(below) // 2] == 1
    assert queues.times.mixture((1,))[len(below) // 2] == 0


@pytest.mark.parametrize(("chance", "time"), [(0.25, 25), (0.5, 30), (0.75, 45), (1.0, 50)])
def test_a_quantile_lies_within_its_bin(chance: float, time: Time) -> None:
    """Nothing under 20, half between 20 and 30, nothing up to 40, and half from there."""
    assert quantile([10, 20, 30, 40, 50], [0, 0, 0.5, 0.5, 1], chance) == time


@given(
    counts=st.lists(st.integers(0, 20), min_size=1, max_size=8).filter(any),
    low=st.floats(0, 1),
    more=st.floats(0, 1),
)
def test_quantiles_rise_and_keep_their_promise(counts: list[int], low: float, more: float) -> None:
    edges = list(range(100, 100 + 10 * len(counts) + 1, 10))
    below = [sum(counts[:place]) / sum(counts) for place in range(len(counts) + 1)]
    first = quantile(edges, below, low)
    second = quantile(edges, below, min(1.0, low + more))
    assert edges[0] <= first <= second <= edges[-1]
    assert np.interp(first, edges, below) == pytest.approx(low)


marks = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3), st.integers(1, 5)), max_size=40)


def assert_alike(one: RateMeter, other: RateMeter) -> None:
    assert one.window() == other.window()
    assert one.dispersion() == other.dispersion()


@given(before=marks, after=marks)
def test_a_sum_of_meters_is_one_that_counted_everything(
    before: list[tuple[int, int, int]], after: list[tuple[int, int, int]]
) -> None:
    parts = [RateMeter() for _ in range(4)]
    whole = RateMeter()
    now = 0
    for bins, part, requests in before:
        now += bins * BIN
        for meter in (parts[part], whole):
            meter.roll(now)
            meter.count(requests)
    for meter in (*parts, whole):
        meter.roll(now)
    total = RateMeter.sum(parts)
    assert_alike(total, whole)
    for bins, _, requests in after:
        now += bins * BIN
        for meter in (total, whole):
            meter.roll(now)
            meter.count(requests)
        assert_alike(total, whole)


@given(counts=st.lists(st.integers(0, 30), min_size=2, max_size=2 * BINS + 7))
def test_dispersion_is_variance_over_mean(counts: list[int]) -> None:
    meter = RateMeter()
    for place, count in enumerate([*counts, 0]):
        meter.roll(place * BIN)
        meter.count(count)
    seen = np.array(counts[-BINS:])
    expected = seen.var() / seen.mean() if seen.any() else 1.0
    assert meter.dispersion() == pytest.approx(expected)


def test_evenly_spaced_requests_have_no_dispersion_and_batches_of_ten_have_ten_times_as_much() -> None:
    even = RateMeter()
    chance = np.random.default_rng(3)
    single = RateMeter()
    tens = RateMeter()
    for place, count in enumerate(chance.poisson(20, 101).tolist()):
        for meter, requests in ((even, 7), (single, count), (tens, 10 * count)):
            meter.roll(place * BIN)
            meter.count(requests)
    assert even.dispersion() == 0
    assert single.dispersion() == pytest.approx(1, abs=0.35)
    assert tens.dispersion() == pytest.approx(10 * single.dispersion())
    assert even.rate() == pytest.approx(140 / SECOND)
    assert RateMeter().rate() == 0


def stepped(*means: float, slo: float = 20_000, gpus: int = 1, **parameters: Any) -> SteppedPolicy:
    return SteppedPolicy("astrarium", cluster([model(*means, slo=slo)], gpus), **parameters)


def ask(id_: int, at: float, due: float, application: int) -> Event:
    return RequestArrived(Request(id_, 0, ms(at), ms(due), application))


def waiting_by_queue(at: SteppedPolicy) -> list[list[int]]:
    """Who waits in which queue, those without anybody left out."""
    return [[request.id for request in queue.requests] for queue in at.policy._queues if queue.requests]


def wait(at: SteppedPolicy, applications: int, seconds: float = 1.5, every: float = 10) -> None:
    """Requests of each application in turn, with deadlines in no order, and no GPU to take them."""
    at.hear(0, GpuLeft(0))
    for number in range(int(seconds * 1000 / every)):
        now = number * every
        at.hear(now, ask(number, now, 20_000 - number * 37 % 1000, number % applications))


def test_forming_lines_anew_loses_nobody_and_keeps_the_order() -> None:
    at = stepped(4, 40, 4)
    wait(at, 3, seconds=0.9)
    assert len(waiting_by_queue(at)) == 1
    wait_on = [ask(number, number * 10, 20_000 - number * 37 % 1000, number % 3) for number in range(90, 150)]
    for place, event in enumerate(wait_on, 90):
        assert at.hear(place * 10, event) == []
    assert len(waiting_by_queue(at)) == 2
    assert (
        sorted(id_ for queue in waiting_by_queue(at) for id_ in queue)
        == sorted(at.state.waiting)
        == list(range(150))
    )
    for queue in at.policy._queues:
        assert all(one <= other for one, other in pairwise(queue.deadlines))
        assert queue.deadlines == [request.deadline for request in queue.requests]
        assert len({request.application == 1 for request in queue.requests}) <= 1


def test_lines_of_the_new_groups_know_their_rates() -> None:
    at = stepped(4, 40, 4)
    wait(at, 3)
    whole = sum(queue.meter.window()[0] for queue in at.policy._queues)
    assert whole == pytest.approx(150, abs=6)  # the bin being filled is not in it
    rates = sorted(queue.meter.window()[0] for queue in at.policy._queues)
    assert rates[0] == 0  # a queue that is out of use
    assert rates[2] == pytest.approx(2 * rates[1], abs=3)


@pytest.mark.parametrize(("kind", "count"), [("application", 3), ("model", 1), ("grouped", 2)])
def test_what_the_lines_are_made_of_can_be_chosen(kind: str, count: int) -> None:
    at = stepped(4, 40, 4, lines=kind)
    wait(at, 3)
    assert len(waiting_by_queue(at)) == count
    if kind == "application":
        assert all(len({number % 3 for number in queue}) == 1 for queue in waiting_by_queue(at))


def test_everybody_is_served_once_there_is_a_gpu_again() -> None:
    """And short requests never share a batch with long ones."""
    setup = cluster([model(4, 40, 4, slo=20_000)], 1)
    requests = tuple(
        Request(number, 0, ms(number * 10), ms(20_000 - number * 37 % 1000), number % 3)
        for number in range(150)
    )
    case = Case(setup, requests, ((0, GpuLeft(0)), (ms(1600), GpuJoined(0))))
    run = run_case(case, Astrarium(setup, Astrarium.Parameters()))
    all_in_time(run)
    assert all(len({request.application == 1 for request in one.requests}) == 1 for one in audit(run).sent)


def test_what_the_profiler_measured_is_planned_with() -> None:
    at = stepped(4, 4, slo=100)
    assert at.policy._queues[0].latency[1] == pytest.approx(ms(2 + 0.2 * 4), rel=0.05)
    at.hear(0, GpuLeft(0))
    at.hear(1, ask(0, 1, 60_000, 0))
    news = [RequestProfiled(900 + n, 0, n % 2, ms(16)) for n in range(40)]
    at.hear(1200, *news)
    assert at.policy._queues[0].latency[1] == pytest.approx(ms(2 + 0.2 * 16), rel=0.05)


def test_a_static_model_beside_a_dynamic_one_has_one_queue() -> None:
    static = linear_model(MS, 5 * MS, 100 * MS, 8)
    at = SteppedPolicy("astrarium", cluster([static, model(4, 40), static], 1), lines="application")
    assert len(at.policy._queues) == 4
    places = [
        at.policy.index_of(Request(0, of, 0, 1, application))
        for of, application in [(0, 0), (1, 0), (1, 1), (2, 0)]
    ]
    assert places == [0, 1, 2, 3]
