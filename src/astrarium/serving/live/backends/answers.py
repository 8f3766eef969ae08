"""Answers of a model are checked against the outputs that it promised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from astrarium.serving.live.backends.contract import Batch, ModelFailed, Result
from astrarium.serving.live.tensors import BF16, BYTES, DATATYPES, Array, TensorSpec, to_bfloat16

# Stacking makes one array of items of unequal shape, and splits it again.


Shape = tuple[int, ...]


def stack(items: Sequence[Array]) -> Array:
    """Return one array with the items along a new first dimension.

    Items that differ in length (along dimensions that a model declares as -1) are padded at the end with
    zeros, or with empty bytes, to the longest.
    """
    shapes = {item.shape for item in items}
    if len(shapes) == 1:
        return np.stack(items)
    if len({len(shape) for shape in shapes}) > 1:
        raise ValueError(f"items of unequal rank cannot be stacked: {sorted(shapes)}")
    return _padded(items, _longest(list(shapes)))


def split(array: Array, declared: Shape, own: Sequence[Shape]) -> list[Array] | None:
    """Return the items of an output, cut back where it follows a padded input; None where it does not.

    An output follows an input in dimensions that are declared open (-1) and as long as its longest item.
    *own* holds the shapes of the input's items before `stack`.
    """
    longest = _longest(own)
    places = zip(declared, array.shape[1:], longest, strict=False)
    follows = [wanted == -1 and size == padded for wanted, size, padded in places]
    if not any(follows):
        return None
    return [item[_cut(shape, follows)] for item, shape in zip(array, own, strict=True)]


def _longest(shapes: Sequence[Shape]) -> Shape:
    return tuple(map(max, zip(*shapes, strict=True)))


def _padded(items: Sequence[Array], longest: Shape) -> Array:
    empty = b"" if items[0].dtype.kind == "O" else 0
    whole = np.full((len(items), *longest), empty, items[0].dtype)
    for place, item in enumerate(items):
        whole[place][tuple(slice(size) for size in item.shape)] = item
    return whole


def _cut(own: Shape, follows: Sequence[bool]) -> tuple[slice, ...]:
    return tuple(slice(size) if cut else slice(None) for size, cut in zip(own, follows, strict=False))


def result(answer: Any, specs: Sequence[TensorSpec], batch: Batch) -> Result:
    """Return the answer to a batch, checked, and cut back where it follows inputs that were padded."""
    outputs = checked_outputs(answer, specs, batch.size)
    if not batch.own_shapes:
        return Result(outputs)
    return Result({spec.name: unpadded(outputs[spec.name], spec, batch) for spec in specs})


def unpadded(array: Array, spec: TensorSpec, batch: Batch) -> Array | Sequence[Array]:
    """Cut an output back to its items' own shapes, by the first padded input that it follows."""
    cut = (split(array, spec.shape, own) for own in batch.own_shapes.values())
    return next((items for items in cut if items is not None), array)


def checked_outputs(answer: Any, specs: Sequence[TensorSpec], size: int) -> dict[str, Array]:
    """Return arrays by name with the promised type and shape, or raise ModelFailed; without *specs*, any."""
    found = named(answer, [spec.name for spec in specs])
    if not specs:
        return {name: np.asarray(value) for name, value in found.items()}
    for spec in specs:
        if spec.name not in found:
            raise ModelFailed(f"no output {spec.name}: the model answered with {', '.join(found) or 'none'}")
    return {spec.name: _checked(found[spec.name], spec, size) for spec in specs}


def named(answer: Any, names: Sequence[str]) -> Mapping[str, Any]:
    """Return an answer by name: a dictionary as it is, a tuple or a single value in the order of *names*."""
    if isinstance(answer, Mapping):
        return answer
    values = answer if isinstance(answer, tuple | list) else (answer,)
    if not names:
        names = ["OUTPUT"] if len(values) == 1 else [f"OUTPUT_{place}" for place in range(len(values))]
    if len(values) != len(names):
        raise ModelFailed(f"{len(values)} outputs instead of {len(names)}: {', '.join(names)}")
    return dict(zip(names, values, strict=True))


def _checked(value: Any, spec: TensorSpec, size: int) -> Array:
    array = _array(value, spec)
    if array.ndim == 0 or len(array) != size or not spec.admits(array.shape[1:]):
        promised = [size, *spec.shape]
        raise ModelFailed(f"output {spec.name} has the shape {list(array.shape)} instead of {promised}")
    return array


def _array(value: Any, spec: TensorSpec) -> Array:
    if spec.datatype == BYTES:
        return np.asarray(value, np.object_)
    array = np.asarray(value)
    wanted = DATATYPES[spec.datatype]
    if array.dtype == wanted:
        return array
    if spec.datatype == BF16 and array.dtype.kind == "f":
        return to_bfloat16(array)
    if not np.can_cast(array.dtype, wanted, "same_kind"):
        raise ModelFailed(f"output {spec.name} has the type {array.dtype} instead of {spec.datatype}")
    return array.astype(wanted)
