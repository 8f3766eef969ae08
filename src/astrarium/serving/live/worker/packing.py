"""What items of unequal length run together without any padding, for a model that takes them packed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from astrarium.serving.live import packing
from astrarium.serving.live.backends import batches
from astrarium.serving.live.backends.contract import Batch, PackedInGraphs
from astrarium.serving.live.ranges import Sizes
from astrarium.serving.live.tensors import Array, TensorSpec
from astrarium.serving.live.worker.inputs import UnequalItems, rows_of
from astrarium.serving.live.worker.padding import Padding, Part


def together(inputs: Sequence[TensorSpec], model: object = None) -> Padding:
    """Return how the items of a model run together, as long as nothing is known of its answers."""
    if not packing.is_packed(inputs):
        return Padding(tuple(inputs))
    return Packing(tuple(inputs), graphs=model if isinstance(model, PackedInGraphs) else None)


@dataclass(frozen=True)
class Packing(Padding):
    """The packing of a model: items of any length run together where *allowed*, else each runs alone.

    Where the model has *graphs*, those that run together become the shape of one, if they fit any.
    """

    graphs: PackedInGraphs | None = None

    @property
    def unpadded(self) -> Packing:
        return replace(self, allowed=True, graphs=None)

    def parts(self, gathered: Batch | UnequalItems) -> list[Part]:
        if isinstance(gathered, Batch):
            is_whole = self.allowed and self._is_regular([one.shape[1:] for one in gathered.inputs.values()])
            if not (is_whole and self._shapes) and (is_whole or gathered.size == 1):
                whole = batches.alike(self.inputs, gathered.inputs, gathered.applications)
                return [Part(range(gathered.size), whole)]
            items = {name: rows_of(array) for name, array in gathered.inputs.items()}
            gathered = UnequalItems(gathered.size, items, gathered.applications)
        return [
            Part(places, self._packed(gathered, places, tried)) for places, tried in self._places(gathered)
        ]

    @property
    def _shapes(self) -> Sequence[packing.PackedShape]:
        return self.graphs.packed_shapes if self.graphs is not None else ()

    @cached_property
    def _packed_input(self) -> tuple[str, Sizes | None]:
        """Return an input that is as long as the items, and the range of that."""
        return next((spec.name, spec.sizes_of(0)) for spec in self.inputs if spec.packed)

    def _places(self, items: UnequalItems) -> list[tuple[list[int], bool]]:
        """Return which items run together, and whether a trial has tried such; others run alone."""
        shapes = [
            tuple(arrays[place].shape for arrays in items.arrays.values()) for place in range(items.size)
        ]
        mixed = [place for place, own in enumerate(shapes) if self.allowed and self._is_regular(own)]
        alone = [([place], False) for place in range(items.size) if place not in {*mixed}]
        return sorted([(mixed, True), *alone] if mixed else alone)

    def _packed(self, items: UnequalItems, places: Sequence[int], tried: bool) -> Batch:
        own = {name: [arrays[place] for place in places] for name, arrays in items.arrays.items()}
        applications = [items.applications[place] for place in places] if items.applications else ()
        return batches.packed(self.inputs, own, applications, self._rest(own) if tried else ())

    def _rest(self, own: Mapping[str, Sequence[Array]]) -> Sequence[int]:
        """Return how long the items are that are put behind these for a graph."""
        name, range_ = self._packed_input
        if range_ is None:
            return ()
        return packing.rest_in(self._shapes, list(map(len, own[name])), range_) or ()
