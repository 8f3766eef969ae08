"""Numbers of shapes: they tell a cell as a length tells its bucket, and no two shapes have the same."""

from __future__ import annotations

from bisect import bisect_left
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrarium.core.errors import InputError
from astrarium.core.profiles import by_size
from astrarium.core.quantities import Duration
from astrarium.core.size_grid import TOO_LARGE, Size, SizeGrid, rounded_up, size_of

axis = st.lists(st.integers(1, 12), min_size=1, max_size=3, unique=True).map(sorted)


@st.composite
def grids(draw: st.DrawFn) -> SizeGrid:
    axes = draw(st.lists(axis, min_size=2, max_size=3))
    return SizeGrid(draw(st.permutations(list(product(*axes)))))


@given(grids())
def test_every_shape_has_a_number_of_its_own_which_tells_its_cell(grid: SizeGrid) -> None:
    shapes = list(product(*(range(1, along[-1] + 1) for along in grid.axes)))
    numbers = [grid.number(shape) for shape in shapes]
    assert sorted(numbers) == list(range(1, len(shapes) + 1))
    assert [grid.shape(number) for number in numbers] == shapes
    cells = [grid.sizes[bisect_left(grid.longest, number)] for number in numbers]
    assert cells == [rounded_up(shape, grid.axes) for shape in shapes]


def test_what_is_too_large_has_the_largest_number() -> None:
    grid = SizeGrid([(4, 4), (4, 8), (8, 4), (8, 8)])
    assert grid.number((9, 1)) == TOO_LARGE
    assert grid.longest == (16, 32, 48, 64)


WRONG: list[tuple[list[Size], str]] = [
    ([], "sizes such as 64x128"),
    ([(64,)], "sizes such as 64x128"),
    ([(64, 64), (64, 64, 3)], "sizes such as 64x128"),
    ([(64, 64), (128, 128)], "64x128 too: every size along one axis with every one along the others"),
    ([(64, 64), (64, 64)], "once"),
    ([(1 << 20, 1 << 20)], "fewer than"),
]


@pytest.mark.parametrize(("sizes", "message"), WRONG)
def test_sizes_that_are_no_grid_are_refused(sizes: list[Size], message: str) -> None:
    with pytest.raises(InputError, match=message):
        SizeGrid(sizes)


@pytest.mark.parametrize("text", ["64", "64x", "x", "64x-1", "axb", "64x0", 64, None])
def test_what_is_no_size_is_refused(text: object) -> None:
    with pytest.raises(InputError, match="64x128"):
        size_of(text)


def test_a_profile_by_size_is_one_by_number() -> None:
    sizes: list[Size] = [(4, 4), (4, 8), (8, 4), (8, 8)]
    times = {size: {1: Duration(place + 1)} for place, size in enumerate(sizes)}
    profile = by_size(times)
    assert list(profile.lengths) == [16, 32, 48, 64]
    number = profile.grid.number
    assert profile.runs([number((5, 2)), number((7, 3)), number((2, 7))]) == [(1, 32), (2, 48)]
    equal_only = by_size(times, "length")
    assert equal_only.runs([number((5, 2)), number((7, 3)), number((5, 2))]) == [(2, 48), (1, 48)]
