"""What items of unequal length run together without any padding, for a model that takes them packed."""

from __future__ import annotations

from collections.abc import Sequence

from astrarium.serving.live import packing
from astrarium.serving.live.backends import batches
from astrarium.serving.live.backends.contract import Batch
from astrarium.serving.live.tensors import TensorSpec
from astrarium.serving.live.worker.inputs import UnequalItems, rows_of
from astrarium.serving.live.worker.padding import Padding, Part


def together(inputs: Sequence[TensorSpec]) -> Padding:
    """Return how the items of a model run together, as long as nothing is known of its answers."""
    return (Packing if packing.is_packed(inputs) else Padding)(tuple(inputs))


class Packing(Padding):
    """The packing of a model: items of any length run together where *allowed*, else each runs alone."""

    def parts(self, gathered: Batch | UnequalItems) -> list[Part]:
        if isinstance(gathered, Batch):
            shapes = [array.shape[1:] for array in gathered.inputs.values()]
            if gathered.size == 1 or (self.allowed and self._is_regular(shapes)):
                whole = batches.alike(self.inputs, gathered.inputs, gathered.applications)
                return [Part(range(gathered.size), whole)]
            items = {name: rows_of(array) for name, array in gathered.inputs.items()}
            gathered = UnequalItems(gathered.size, items, gathered.applications)
        return [Part(places, self._packed(gathered, places)) for places in self._places(gathered)]

    def _places(self, items: UnequalItems) -> list[list[int]]:
        """Return which items run together; those that no trial has tried run alone."""
        shapes = [
            tuple(arrays[place].shape for arrays in items.arrays.values()) for place in range(items.size)
        ]
        mixed = [place for place, own in enumerate(shapes) if self.allowed and self._is_regular(own)]
        alone = [[place] for place in range(items.size) if place not in {*mixed}]
        return sorted([mixed, *alone] if mixed else alone)

    def _packed(self, items: UnequalItems, places: Sequence[int]) -> Batch:
        own = {name: [arrays[place] for place in places] for name, arrays in items.arrays.items()}
        applications = [items.applications[place] for place in places] if items.applications else ()
        return batches.packed(self.inputs, own, applications)
