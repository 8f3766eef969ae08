"""The grid has the lengths at which a model is measured, or the sizes along several axes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product
from math import prod
from typing import NamedTuple

from astrarium.cli.serving.profile.measuring import Wanted, own_requests
from astrarium.core.lengths import least_padded, lengths_between
from astrarium.core.size_grid import Size, rounded_up, written
from astrarium.serving.live import fills
from astrarium.serving.live.backends.own_requests import OwnRequests
from astrarium.serving.live.ranges import Sizes
from astrarium.serving.live.tensors import TensorSpec

_HALVES = 4  # along each of several axes: sixteen sizes of images, each measured in all batch sizes


class Share(NamedTuple):
    """A share of somebody's own requests runs at each size, and a share of their work is padding."""

    of: dict[Size, float]
    padding: float


class Grid(NamedTuple):
    """A grid has the sizes along each axis; a model with one axis has lengths."""

    axes: list[list[int]]

    @property
    def sizes(self) -> list[Size]:
        """Return what is measured, in an order in which nothing should take less than before."""
        return sorted(product(*self.axes), key=lambda size: (prod(size), size))

    def below(self, size: Size) -> Size:
        """Return what a request is beyond, along each axis, that is rounded up to this size."""
        places = [axis.index(along) for axis, along in zip(self.axes, size, strict=True)]
        return tuple(axis[at - 1] if at else 0 for axis, at in zip(self.axes, places, strict=True))

    def share(self, requests: OwnRequests) -> Share:
        own = [tuple(row) for row in requests.lengths.tolist()]
        sizes = [rounded_up(shape, self.axes) for shape in own]
        counts = Counter(sizes)
        padding = 1 - sum(map(prod, own)) / sum(map(prod, sizes))
        return Share({size: round(counts[size] / len(own), 4) for size in self.sizes}, round(padding, 4))


def named(size: Size) -> int | str:
    """Return a size as a profile has it: a length, or 64x128."""
    return size[0] if len(size) == 1 else written(size)


def grid_of(specs: Sequence[TensorSpec], wanted: Wanted) -> Grid:
    """Return the grid of a model: without axes where nothing is open, or somewhere a range is missing."""
    known = {spec.name: spec for spec in specs}
    ranges = [known[name].sizes_of(place) for (name, place), *_ in fills.axes_of(specs)]
    stated = [range_ for range_ in ranges if range_ is not None]
    if not stated or len(stated) < len(ranges):
        return Grid([])
    requests = own_requests(wanted.data, specs)
    if requests is None:
        return Grid([_between(range_, len(ranges)) for range_ in stated])
    columns = zip(stated, requests.lengths.T.tolist(), strict=True)
    counts = [wanted.buckets or len(_between(range_, len(ranges))) for range_ in stated]
    return Grid(
        [least_padded(own, range_[1], count) for (range_, own), count in zip(columns, counts, strict=True)]
    )


def _between(range_: Sizes, axes: int) -> list[int]:
    low, high = range_
    if axes == 1:
        return lengths_between(low, high)
    return sorted({max(low, high >> half) for half in range(_HALVES)})
