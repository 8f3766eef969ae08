"""A size grid numbers the shapes of items with several open dimensions, such as images."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, product
from math import prod

from astrarium.core.errors import InputError

Size = tuple[int, ...]  # along each axis
SIZE_FORM = "sizes such as 64x128, each with as many axes"
TOO_LARGE = 1 << 30  # lengths go up to that


class SizeGrid:
    """A size grid rounds shapes up to buckets along each axis: a cell has all that become the same size.

    Shapes are numbered cell by cell, in the order of *sizes*, from 1 on. So numbers can be lengths: they tell
    the cell as a length tells its bucket, and no two shapes have the same.
    """

    def __init__(self, sizes: Sequence[Size]) -> None:
        self.sizes = tuple(sizes)
        self._check()
        self.axes = tuple(tuple(sorted(set(along))) for along in zip(*self.sizes, strict=True))
        self._check_whole()
        shapes = [prod(self._widths(size)) for size in self.sizes]
        self.longest = tuple(accumulate(shapes))  # the last number of each cell
        if self.longest[-1] >= TOO_LARGE:
            expected = f"sizes that fewer than {TOO_LARGE} shapes are rounded up to"
            raise InputError("", self.longest[-1], expected)
        self._before = dict(zip(self.sizes, (0, *self.longest), strict=False))

    def number(self, shape: Sequence[int]) -> int:
        """Return the number of a shape; a larger one than all others for any that is too large."""
        cell = rounded_up(shape, self.axes)
        if cell not in self._before:
            return TOO_LARGE
        place = 0
        for own, size, width in zip(shape, cell, self._widths(cell), strict=True):
            place = place * width + own - (size - width) - 1
        return self._before[cell] + place + 1

    def shape(self, number: int) -> Size:
        """Return the shape that has a number: the inverse of `number`."""
        cell = self.sizes[bisect_left(self.longest, number)]
        place = number - self._before[cell] - 1
        own = []
        for size, width in zip(reversed(cell), reversed(self._widths(cell)), strict=True):
            place, along = divmod(place, width)
            own.append(size - width + along + 1)
        return tuple(reversed(own))

    def before(self) -> list[int]:
        """Return the last number before each cell, the cells in the order of their sizes along the axes."""
        return [self._before[cell] for cell in product(*self.axes)]

    def _widths(self, cell: Size) -> list[int]:
        """Return how many sizes are rounded up to that of a cell, along each axis."""
        places = [bisect_left(axis, size) for size, axis in zip(cell, self.axes, strict=True)]
        return [axis[at] - (axis[at - 1] if at else 0) for axis, at in zip(self.axes, places, strict=True)]

    def _check(self) -> None:
        ranks = {len(size) for size in self.sizes}
        if len(ranks) != 1 or min(ranks) < 2 or min(map(min, self.sizes)) < 1:
            raise InputError("", ", ".join(map(written, self.sizes)), SIZE_FORM)

    def _check_whole(self) -> None:
        """Check that there is a cell for every size along an axis with every one along the others."""
        missing = set(product(*self.axes)) - set(self.sizes)
        if missing or len(self.sizes) != len(set(self.sizes)):
            also = f"{written(min(missing))} too: " if missing else ""
            expected = f"{also}every size along one axis with every one along the others, once"
            raise InputError("", ", ".join(map(written, self.sizes)), expected)


def rounded_up(shape: Sequence[int], axes: Sequence[Sequence[int]]) -> Size:
    """Return a shape rounded up along each axis; what is beyond the last bucket of an axis stays as it is."""
    places = [bisect_left(axis, size) for size, axis in zip(shape, axes, strict=True)]
    columns = zip(shape, axes, places, strict=True)
    return tuple(axis[at] if at < len(axis) else size for size, axis, at in columns)


def written(size: Sequence[int]) -> str:
    return "x".join(map(str, size))


def size_of(text: object) -> Size:
    """Return '64x128' as a size; InputError for anything else."""
    parts = str(text).split("x")
    if len(parts) < 2 or not all(
        part.isascii() and part.isdigit() and 0 < int(part) < TOO_LARGE for part in parts
    ):
        raise InputError("", text, SIZE_FORM)
    return tuple(map(int, parts))
