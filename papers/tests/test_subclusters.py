"""Sub-clusters: the best division where it can be counted out, limits and bounds that are kept, reasons."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrarium.core.errors import InputError
from astrarium.core.random_streams import stream
from astrarium_papers.symphony._subclusters import (
    Division,
    Effort,
    Limits,
    Member,
    Subclusters,
    divide,
    random_search,
)

pytest.importorskip("scipy")

GIB = 2**30


def drawn(models: int, parts: int, seed: int, **limits: Any) -> Subclusters:
    chance = stream(seed, "subclusters")
    members = [
        Member(f"m{number}", rate, int(chance.integers(1, 400)) * 2**20, rate * float(chance.uniform(1, 9)))
        for number, rate in enumerate(chance.exponential(100, models).tolist())
    ]
    return Subclusters(tuple(members), parts, Limits(**limits))


def at_home(task: Subclusters, homes: Sequence[int | None], **limits: Any) -> Subclusters:
    members = [
        msgspec.structs.replace(member, today=home) for member, home in zip(task.members, homes, strict=True)
    ]
    return Subclusters(tuple(members), task.parts, Limits(**limits), task.weight)


def by_hand(task: Subclusters, assignment: tuple[int, ...]) -> float | None:
    """The objective, written down a second time; None where a limit is broken."""
    limits = task.limits
    members = task.members
    parts = [[members[i] for i in range(len(members)) if assignment[i] == j] for j in range(task.parts)]
    moved = [m for m, j in zip(members, assignment, strict=True) if m.today is not None and m.today != j]
    loads = [sum(m.balanced_load for m in part) for part in parts]
    sizes = [sum(m.memory for m in part) for part in parts]
    total = sum(loads)
    broken = (
        (limits.rate is not None and max(sum(m.rate for m in part) for part in parts) > limits.rate + 1e-9)
        or (
            limits.memory is not None
            and any(
                size + max((m.runtime for m in part), default=0) > limits.memory
                for size, part in zip(sizes, parts, strict=True)
            )
        )
        or (limits.moved is not None and len(moved) > limits.moved)
        or (
            limits.moved_load is not None
            and sum(m.balanced_load for m in moved) > limits.moved_load * total * (1 + 1e-9)
        )
    )
    if broken:
        return None
    return _largest(loads) + task.weight * _largest(sizes)


def _largest(amounts: list[float] | list[int]) -> float:
    mean = sum(amounts) / len(amounts)
    return max(abs(amount / mean - 1) for amount in amounts) if mean else 0.0


def best_of_all(task: Subclusters) -> float | None:
    every = itertools.product(range(task.parts), repeat=len(task.members))
    return min((cost for division in every if (cost := by_hand(task, division)) is not None), default=None)


def kept(task: Subclusters, division: Division) -> None:
    assert by_hand(task, division.assignment) == pytest.approx(division.objective, abs=1e-9)


@st.composite
def tasks(draw: st.DrawFn) -> Subclusters:
    """Small enough to count out, with limits that bind, or cannot be kept."""
    parts = draw(st.integers(1, 3))
    homes = st.none() | st.integers(0, parts - 1)
    members = [
        Member(
            f"m{number}",
            draw(st.integers(0, 50)),
            draw(st.integers(0, 20)),
            draw(st.none() | st.integers(0, 30)),
            draw(st.integers(0, 6)),
            draw(homes),
        )
        for number in range(draw(st.integers(1, 6)))
    ]
    limits = Limits(
        draw(st.none() | st.integers(20, 120)),
        draw(st.none() | st.integers(10, 60)),
        draw(st.none() | st.integers(0, 4)),
        draw(st.none() | st.sampled_from([0.0, 0.2, 0.6])),
    )
    return Subclusters(tuple(members), parts, limits, draw(st.sampled_from([0.0, 0.5, 1.0])))


@settings(max_examples=120)
@given(task=tasks())
def test_small_divisions_are_the_best_there_are_or_there_are_none(task: Subclusters) -> None:
    best = best_of_all(task)
    if best is None:
        assert refusal(task).field.startswith("limits.")
        return
    division = divide(task)
    kept(task, division)
    assert division.optimal
    assert division.objective == pytest.approx(best, abs=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_nine_models_over_three_parts(seed: int) -> None:
    task = drawn(9, 3, seed)
    division = divide(task)
    assert division.optimal
    assert division.objective == pytest.approx(best_of_all(task), abs=1e-6)


def test_limits_are_kept_where_they_are_tight() -> None:
    task = drawn(60, 5, 1)
    rate = 1.02 * sum(member.rate for member in task.members) / 5
    memory = int(1.02 * sum(member.memory for member in task.members) / 5)
    task = Subclusters(task.members, 5, Limits(rate, memory))
    kept(task, divide(task))


@pytest.mark.parametrize("limits", [{"moved": 5}, {"moved_load": 0.05}, {"moved": 8, "moved_load": 0.1}])
def test_no_more_moves_than_it_may_and_it_uses_them(limits: dict[str, float]) -> None:
    before = drawn(80, 4, 2)
    homes = list(divide(before).assignment)
    after = at_home(drawn(80, 4, 3), homes, **limits)  # other rates and sizes: today's is out of balance
    stuck = by_hand(at_home(after, homes), tuple(homes))
    division = divide(after)
    kept(after, division)
    assert stuck is not None
    assert division.objective < 0.8 * stuck
    assert len(division.moved) <= limits.get("moved", 80)
    assert division.moved_load <= limits.get("moved_load", 1.0) + 1e-9


def test_nothing_may_move_and_nothing_does() -> None:
    homes = [place % 4 for place in range(40)]
    division = divide(at_home(drawn(40, 4, 4), homes, moved=0))
    assert division.assignment == tuple(homes)
    assert division.moved == ()


def test_new_models_move_for_free() -> None:
    homes: list[int | None] = [0, 0, 1, 1, None, None]
    division = divide(at_home(drawn(6, 2, 5), homes, moved=0))
    assert division.assignment[:4] == (0, 0, 1, 1)
    assert division.moved == ()


def test_the_same_question_gets_the_same_answer() -> None:
    task = at_home(drawn(90, 6, 6), [place % 6 for place in range(90)], moved=10)
    assert divide(task) == divide(task)


def test_far_better_than_a_random_search_that_looks_at_as_many() -> None:
    task = drawn(40, 5, 7)
    division = divide(task)
    chance = random_search(task, division.tried, stream(7, "random search"))
    assert chance is not None
    kept(task, chance)
    assert division.load_imbalance < chance.load_imbalance / 5
    assert division.memory_imbalance < chance.memory_imbalance / 5


def test_a_random_search_keeps_limits_too() -> None:
    homes = [place % 4 for place in range(40)]
    task = at_home(drawn(40, 4, 8), homes, moved=3, moved_load=0.2)
    division = random_search(task, 500, stream(8, "random search"))
    assert division is not None
    kept(task, division)
    assert 0 < len(division.moved) <= 3
    hopeless = Subclusters(task.members, 4, Limits(memory=1))
    assert random_search(hopeless, 50, stream(8, "random search")) is None


def refusal(task: Subclusters) -> InputError:
    with pytest.raises(InputError) as caught:
        divide(task)
    return caught.value


def sized(*gib: int, parts: int = 2, **limits: Any) -> Subclusters:
    members = tuple(Member(f"m{place}", 10.0, size * GIB) for place, size in enumerate(gib))
    return Subclusters(members, parts, Limits(**limits))


def test_what_is_missing_is_said() -> None:
    alone = refusal(sized(9, 1, memory=8 * GIB))
    assert alone.field == "limits.memory"
    assert "9GiB: m0 alone" in alone.expected
    together = refusal(sized(6, 6, 6, memory=8 * GIB))
    assert "at least 9GiB" in together.expected
    assert "3 sub-clusters" in together.expected
    unpackable = refusal(sized(5, 5, 5, memory=8 * GIB))
    assert "at least 10GiB" in unpackable.expected
    rate = refusal(sized(1, 1, 1, rate=12))
    assert rate.field == "limits.rate"
    assert "15/s" in rate.expected


def test_too_few_moves_are_said_with_how_many_it_takes() -> None:
    task = at_home(sized(3, 3, 3, 3), [0, 0, 0, 0], memory=6 * GIB, moved=1)
    error = refusal(task)
    assert error.field == "limits.moved"
    assert "moving 2 models" in error.expected
    assert "no less" in error.expected
    by_load = at_home(sized(3, 3, 3, 3), [0, 0, 0, 0], memory=6 * GIB, moved_load=0.3)
    assert refusal(by_load).field == "limits.moved_load"


def test_too_few_moves_are_said_of_many_models_too() -> None:
    many = at_home(sized(*[1] * 410, parts=10), [0] * 410, memory=50 * GIB, moved=5)
    error = refusal(many)
    assert error.field == "limits.moved"
    assert "moving 360 models" in error.expected


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"parts": 0}, "parts"),
        ({"weight": -1.0}, "weight"),
        ({"limits": Limits(moved=-1)}, "limits.moved"),
        ({"members": (Member("a", -1.0, 0),)}, "members[0].rate"),
        ({"members": (Member("a", 1.0, 0, load=float("nan")),)}, "members[0].load"),
        ({"members": (Member("a", 1.0, 0, today=2),)}, "members[0].today"),
    ],
)
def test_bad_input_is_named(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as caught:
        Subclusters(**{"members": (), "parts": 2, **change})
    assert caught.value.field == field


def test_nobody_at_all() -> None:
    assert divide(Subclusters((), 3)).assignment == ()


def test_eight_hundred_models_over_twenty_parts() -> None:
    division = divide(drawn(800, 20, 9), Effort(rounds=1))
    assert division.load_imbalance < 0.01
    assert division.memory_imbalance < 0.01


def test_as_few_moves_as_can_be_are_found_where_the_search_ends_too_early() -> None:
    task = at_home(sized(4, 4, 4, 4, 1, 1, parts=4), [0, 0, 0, 0, 1, 2], memory=5 * GIB, moved=3)
    division = divide(task, Effort(exact=0, rounds=0, swaps=0))
    kept(task, division)
    assert len(division.moved) == 3
