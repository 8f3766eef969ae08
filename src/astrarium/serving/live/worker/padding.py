"""What items of unequal shape run together is decided here, whatever policy has put them into one batch.

Padding makes one shape of them: zeros behind the shorter ones. A model whose answers that would change runs
them in parts of exactly equal shape instead, one after the other, and the answers are put together again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from astrarium.core.quantities import Time
from astrarium.core.size_grid import rounded_up
from astrarium.serving.live import fills, limits, packing
from astrarium.serving.live.backends.contract import Batch, Launched, Ran, Result
from astrarium.serving.live.backends.stacking import longest, stack
from astrarium.serving.live.tensors import Array, TensorSpec
from astrarium.serving.live.worker.inputs import UnequalItems, rows_of

Shape = tuple[int, ...]
Launch = Callable[[Batch, Time], Launched]


class Part(NamedTuple):
    """A part of a batch is what runs at once: a batch of one shape, and which items of the whole it has."""

    places: Sequence[int]
    batch: Batch


@dataclass(frozen=True)
class Padding:
    """The padding of a model: *inputs* are all that it takes, *allowed* where answers do not change by it.

    Batches are padded to the longest item, or to the next of the *buckets* of each axis. Where several axes
    have buckets, items of other buckets run apart: padded along each axis, a wide image and a high one would
    both be several times as large.
    """

    inputs: tuple[TensorSpec, ...]
    allowed: bool = False
    buckets: tuple[tuple[int, ...], ...] = ()  # by axis
    sent: tuple[TensorSpec, ...] = field(init=False)
    _fills: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sent", fills.sent(self.inputs))
        object.__setattr__(self, "_fills", len(self.sent) < len(self.inputs))

    @property
    def unpadded(self) -> Padding:
        """Return how items run among others of their length, with nothing beside them."""
        return replace(self, allowed=False)

    @cached_property
    def axes(self) -> list[list[fills.Axis]]:
        return fills.axes_of(self.inputs)

    @cached_property
    def is_packed(self) -> bool:
        return packing.is_packed(self.inputs)

    @cached_property
    def _buckets_along(self) -> dict[fills.Axis, tuple[int, ...]]:
        return {one: along for axis, along in zip(self.axes, self.buckets, strict=True) for one in axis}

    @cached_property
    def _elements(self) -> dict[str, Any]:
        return {spec.name: limits.padding_element(spec) for spec in self.sent}

    def parts(self, gathered: Batch | UnequalItems) -> list[Part]:
        """Return the parts of a batch in the order of their first items."""
        if isinstance(gathered, Batch):
            return [Part(range(gathered.size), self._whole(gathered))]
        return [Part(*group) for group in self._groups(gathered)]

    def with_rows(self, batch: Batch, size: int) -> Batch:
        """Return a batch with further rows behind, as a graph may need them; nobody reads their answers.

        What the server fills says that such a row is as long as the others were padded to: a mask of nothing
        but zeros makes many models divide by zero.
        """
        more = size - batch.size
        inputs = {spec.name: self._longer(spec.name, batch.inputs[spec.name], more) for spec in self.sent}
        own = {
            name: [*batch.own_shapes.get(name, [array.shape[1:]] * batch.size), *[array.shape[1:]] * more]
            for name, array in inputs.items()
        }
        kept = {name: own[name] for name in batch.own_shapes}
        return Batch(size, fills.filled(self.inputs, inputs, own), batch.applications, kept)

    def _longer(self, name: str, array: Array, rows: int) -> Array:
        return np.concatenate([array, np.full((rows, *array.shape[1:]), self._elements[name], array.dtype)])

    def _whole(self, batch: Batch) -> Batch:
        """Return a batch of equal items as the model takes it."""
        own = [array.shape[1:] for array in batch.inputs.values()]
        if self.allowed and self.buckets and self.axes and self._is_regular(own):
            items = {name: rows_of(array) for name, array in batch.inputs.items()}
            return self._made(batch.size, items, batch.applications, padded=True)
        if not self._fills:
            return batch
        return Batch(batch.size, fills.complete(self.inputs, batch.inputs), batch.applications)

    def _groups(self, items: UnequalItems) -> Iterator[tuple[Sequence[int], Batch]]:
        """Yield which items run together, and their batch."""
        groups: dict[Any, list[int]] = {}
        for place in range(items.size):
            own = tuple(arrays[place].shape for arrays in items.arrays.values())
            padded = self.allowed and self._is_regular(own)
            groups.setdefault((padded, self._cell(own) if padded else own), []).append(place)
        for (padded, _), places in groups.items():
            yield places, self._together(items, places, padded)

    def _cell(self, shapes: Sequence[Shape]) -> Shape:
        """Return what all items share that are padded to one shape."""
        if len(self.axes) < 2 or not self.buckets:
            return ()
        by_name = dict(zip((spec.name for spec in self.sent), shapes, strict=True))
        return rounded_up([by_name[name][place] for (name, place), *_ in self.axes], self.buckets)

    def _is_regular(self, shapes: Sequence[Shape]) -> bool:
        """Whether an item is such as the trial has tried: not empty, and of one length along each axis."""
        by_name = dict(zip((spec.name for spec in self.sent), shapes, strict=True))
        lengths = [{by_name[name][place] for name, place in axis} for axis in self.axes]
        return all(len(one) == 1 and 0 not in one for one in lengths)

    def _together(self, items: UnequalItems, places: Sequence[int], padded: bool) -> Batch:
        arrays = {name: [own[place] for place in places] for name, own in items.arrays.items()}
        applications = [items.applications[place] for place in places] if items.applications else ()
        return self._made(len(places), arrays, applications, padded)

    def _made(
        self, size: int, arrays: Mapping[str, Sequence[Array]], applications: Sequence[int], padded: bool
    ) -> Batch:
        own = {name: [item.shape for item in items] for name, items in arrays.items()}
        shapes = {spec.name: self._shape(spec, own[spec.name], padded) for spec in self.sent}
        inputs = {name: stack(items, shapes[name], self._elements[name]) for name, items in arrays.items()}
        as_they_were = all({*own[name]} == {shapes[name]} for name in own)
        kept = {} if as_they_were else {spec.name: own[spec.name] for spec in self.sent if -1 in spec.shape}
        return Batch(size, fills.filled(self.inputs, inputs, own), applications, kept)

    def _shape(self, spec: TensorSpec, own: Sequence[Shape], padded: bool) -> Shape:
        whole = longest(own)
        if not padded:
            return whole
        if not self.buckets:
            return whole
        return tuple(
            size if wanted >= 0 else rounded_up([size], [self._buckets_along[spec.name, place]])[0]
            for place, (size, wanted) in enumerate(zip(whole, spec.shape, strict=True))
        )


class LaunchedParts:
    """The parts of a launched batch go to the GPU one after the other, so many *at_once*.

    Only the first is launched at once; the others follow while the batch has its turn.
    """

    def __init__(self, parts: Sequence[Part], launch: Launch, not_before: Time, at_once: int) -> None:
        self._parts = parts
        self._to_launch = deque(part.batch for part in parts)
        self._launch = launch
        self._not_before = not_before
        self._at_once = max(1, at_once)
        self._launched: deque[Launched] = deque()
        self._launch_next()

    @property
    def whole(self) -> bool:
        """Whether no part is still to be launched."""
        return not self._to_launch

    @property
    def in_flight(self) -> int:
        """Return how many parts the GPU was given whose answers are not here yet."""
        return len(self._launched)

    def wait(self, free: Time) -> Ran:
        began = None
        results = []
        while self._fly():
            ran = self._launched[0].wait(free)
            results.append(kept(ran.result))
            self._launched.popleft()
            began = ran.began if began is None else began
            free = ran.ended
        assert began is not None, "a batch has a part"
        return Ran(joined(self._parts, results), began, free)

    def _fly(self) -> bool:
        """Launch what may be launched now; return whether the GPU has anything."""
        while self._to_launch and len(self._launched) < self._at_once:
            self._launch_next()
        return bool(self._launched)

    def _launch_next(self) -> None:
        self._launched.append(self._launch(self._to_launch.popleft(), self._not_before))


def kept(result: Result) -> Result:
    """Return a result that stays as it is while further parts run."""
    return Result({name: _copied(items) for name, items in result.outputs.items()}, result.own_times)


def _copied(items: Array | Sequence[Array]) -> Array | Sequence[Array]:
    return items.copy() if isinstance(items, np.ndarray) else [np.array(item) for item in items]


def joined(parts: Sequence[Part], results: Sequence[Result]) -> Result:
    """Return the results of the parts of a batch as that of the whole, in the order of its items."""
    size = sum(part.batch.size for part in parts)
    names = list(results[0].outputs)
    outputs = {name: _in_order(parts, [result.outputs[name] for result in results], size) for name in names}
    own_times: list[int] = []
    if all(result.own_times for result in results):
        times = _in_order(parts, [np.array(result.own_times) for result in results], size)
        own_times = [int(time) for time in times]
    return Result(outputs, own_times)


def _in_order(
    parts: Sequence[Part], columns: Sequence[Array | Sequence[Array]], size: int
) -> Array | Sequence[Array]:
    items: list[Any] = [None] * size
    for part, column in zip(parts, columns, strict=True):
        for place, item in zip(part.places, column, strict=True):
            items[place] = item
    arrays = [column for column in columns if isinstance(column, np.ndarray)]
    alike = len(arrays) == len(columns) and len({(one.shape[1:], one.dtype.str) for one in arrays}) == 1
    return np.stack(items) if alike and arrays[0].dtype.kind != "O" else items
