"""Orloj's score: the closed form is the definition, and its points change at milestones only."""

from __future__ import annotations

from math import exp

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrarium.core.quantities import FOREVER
from astrarium.core.quantities import MILLISECOND as MS
from astrarium.serving.policies._times import BatchTime, certain, mean
from astrarium.serving.policies.orloj.score import ScoreTable

BOUNDED = settings(max_examples=80, derandomize=True, deadline=None, database=None)


def made(edges: tuple[int, ...], chances: tuple[float, ...]) -> BatchTime:
    return BatchTime(edges, chances, mean(edges, chances))


@st.composite
def batch_times(draw: st.DrawFn) -> BatchTime:
    widths = draw(st.lists(st.integers(MS // 10, 8 * MS), min_size=1, max_size=6))
    weights = draw(st.lists(st.integers(0, 5), min_size=len(widths), max_size=len(widths)))
    weights[draw(st.integers(0, len(widths) - 1))] += 1
    edges = [draw(st.integers(0, 20 * MS))]
    for width in widths:
        edges.append(edges[-1] + width)
    return made(tuple(edges), tuple(weight / sum(weights) for weight in weights))


def score(table: ScoreTable, now: int, due: int, rate: float, base: int = 0) -> float:
    alpha, beta, _ = table.point(now, due, base)
    return alpha * exp(rate * (now - base)) + beta


def by_definition(time: BatchTime, left: int, rate: float, slices: int = 4000) -> float:
    """Over the times the batch may take: in time if sent now, late after the exponential delay."""
    gain = 0.0
    for low, high, chance in zip(time.edges, time.edges[1:], time.chances, strict=False):
        step = (high - low) / slices
        for place in range(slices):
            taken = low + (place + 0.5) * step
            if taken <= left:
                gain += chance / slices * exp(-rate * (left - taken))
    return gain / time.mean


@settings(BOUNDED, max_examples=25)
@given(time=batch_times(), left=st.integers(0, 90 * MS), b=st.sampled_from([1e-4, 1e-2, 0.3]))
def test_the_closed_form_is_the_definition(time: BatchTime, left: int, b: float) -> None:
    rate = b / MS
    now = 123 * MS
    table = ScoreTable(time, rate)
    expected = by_definition(time, left, rate)
    assert score(table, now, now + left, rate) == pytest.approx(expected, rel=2e-3, abs=1e-3 / time.mean)


@BOUNDED
@given(time=batch_times(), left=st.integers(0, 90 * MS), base=st.integers(0, 100 * MS))
def test_the_base_does_not_matter(time: BatchTime, left: int, base: int) -> None:
    rate = 0.01 / MS
    now = 123 * MS
    table = ScoreTable(time, rate)
    moved = score(table, now, now + left, rate, base)
    assert moved == pytest.approx(score(table, now, now + left, rate), rel=1e-9, abs=1e-12 / time.mean)


@BOUNDED
@given(time=batch_times(), left=st.integers(0, 90 * MS), data=st.data())
def test_a_point_stands_until_its_milestone_and_no_longer(
    time: BatchTime, left: int, data: st.DataObject
) -> None:
    table = ScoreTable(time, 0.01 / MS)
    due = 200 * MS
    now = due - left
    point = table.point(now, due, 0)
    assert point.milestone > now
    if point.milestone < FOREVER:
        between = data.draw(st.integers(now, point.milestone - 1))
        assert table.point(between, due, 0) == point
        after = table.point(point.milestone, due, 0)
        assert after[:2] != point[:2]
        assert after.milestone > point.milestone


def test_milestones_are_where_what_is_left_falls_below_an_edge() -> None:
    table = ScoreTable(made((4, 6, 8, 10), (0.5, 0.25, 0.25)), 0.1)
    due = 100
    milestones_seen = []
    now = 0
    while now < FOREVER:
        now = table.point(now, due, 0).milestone
        milestones_seen.append(now)
    assert milestones_seen == [91, 93, 95, 97, FOREVER]


def test_empty_bins_have_no_milestones_between_them() -> None:
    time = made((2, 4, 6, 8, 10, 12), (0.0, 0.5, 0.0, 0.0, 0.5))
    table = ScoreTable(time, 0.1)
    due = 100
    milestones_seen = []
    now = 0
    while now < FOREVER:
        now = table.point(now, due, 0).milestone
        milestones_seen.append(now)
    assert milestones_seen == [
        89,
        91,
        95,
        97,
        FOREVER,
    ]  # 12, 10, 6 and 4; 8 is inside the gap, 2 before everything
    for left in range(14):
        assert score(table, 100 - left, due, 0.1) == pytest.approx(by_definition(time, left, 0.1), abs=1e-3)


def test_a_far_deadline_is_as_urgent_as_it_is_near() -> None:
    table = ScoreTable(made((4 * MS, 9 * MS), (1.0,)), 1e-4 / MS)
    rate = 1e-4 / MS
    scores = [score(table, 50 * MS, due * MS, rate) for due in (60, 70, 71, 200, 2000)]
    assert scores == sorted(scores, reverse=True)
    assert score(table, 49 * MS, 60 * MS, rate) < score(table, 50 * MS, 60 * MS, rate)


def test_what_cannot_be_in_time_has_no_score() -> None:
    table = ScoreTable(made((4, 6), (1.0,)), 0.1)
    assert table.point(97, 100, 0) == (0.0, 0.0, FOREVER)
    assert table.point(500, 100, 0) == (0.0, 0.0, FOREVER)


def test_a_certain_time_is_worth_most_at_the_last_moment() -> None:
    rate = 1e-4 / MS
    table = ScoreTable(certain(10 * MS), rate)
    scores = [score(table, now * MS, 60 * MS, rate) for now in (0, 20, 40, 49)]
    assert scores == sorted(scores)
    assert scores[-1] == pytest.approx(exp(-1e-4) / (10 * MS), rel=1e-6)
    assert table.mean == 10 * MS


@pytest.mark.parametrize("b", [1e-6, 1e-4, 0.1, 1.0])
def test_no_number_overflows(b: float) -> None:
    rate = b / MS
    for edges in ((MS, 5000 * MS, 9000 * MS), (MS, MS + 1000)):
        chances = (1.0,) if len(edges) == 2 else (0.5, 0.5)
        table = ScoreTable(made(edges, chances), rate)
        for left in (0, MS, 6000 * MS, 20_000 * MS):
            assert -1e-6 / MS < score(table, 7, 7 + left, rate) < 2 / MS  # but for rounding


def test_three_requests_change_places_as_time_goes_by() -> None:
    """A batch that ends early or late, and deadlines apart: as in the paper's toy example (Figure 4.6)."""
    rate = 0.2 / MS
    table = ScoreTable(made((4 * MS, 6 * MS, 8 * MS, 10 * MS), (0.5, 0.0, 0.5)), rate)
    deadlines = {1: 20 * MS, 2: 22 * MS, 3: 25 * MS}

    def best_two(now: int) -> set[int]:
        scores = {name: score(table, now, due, rate) for name, due in deadlines.items()}
        return set(sorted(scores, key=scores.__getitem__)[1:])

    assert best_two(10 * MS) == {1, 2}
    assert best_two(14 * MS) == {1, 3}
    assert best_two(17 * MS) == {2, 3}
    assert score(table, 17 * MS, deadlines[1], rate) == 0
