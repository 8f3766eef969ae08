"""Answers of a model are checked against the outputs that it promised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from astrarium.serving.live import packing
from astrarium.serving.live.backends.contract import Batch, ModelFailed, PaddingRemains, Result
from astrarium.serving.live.backends.stacking import Shape, split
from astrarium.serving.live.tensors import BF16, BYTES, DATATYPES, Array, TensorSpec, to_bfloat16


def result(answer: Any, specs: Sequence[TensorSpec], batch: Batch) -> Result:
    """Return the answer to a batch, checked, and cut back where it follows inputs that were padded."""
    if batch.lengths:
        return Result(_unpacked(answer, specs, batch))
    outputs = checked_outputs(answer, specs, batch.size)
    if not batch.own_shapes:
        return Result(outputs)
    return Result({spec.name: unpadded(outputs[spec.name], spec, batch) for spec in specs})


def unpadded(array: Array, spec: TensorSpec, batch: Batch) -> Array | Sequence[Array]:
    """Cut an output back to its items' own shapes, by the first padded input that it follows.

    Where it is open, and follows none, raise PaddingRemains.
    """
    if not spec.open_dimensions:
        return array
    for name, own in batch.own_shapes.items():
        padded = batch.inputs[name].shape[1:]
        items = split(array, spec.shape, own, padded)
        if items is not None and _follows_wholly(spec, array.shape[1:], padded):
            return items
    padded_inputs = ", ".join(f"{name} {list(batch.inputs[name].shape)}" for name in batch.own_shapes)
    shape = list(array.shape)
    raise PaddingRemains(f"output {spec.name} {shape} is not as long as the padded inputs: {padded_inputs}")


def _follows_wholly(spec: TensorSpec, shape: Shape, padded: Shape) -> bool:
    """Whether every open dimension of an output is as long as that of an input."""
    return all(place < len(padded) and shape[place] == padded[place] for place in spec.open_dimensions)


def checked_outputs(answer: Any, specs: Sequence[TensorSpec], size: int) -> dict[str, Array]:
    """Return arrays by name with the promised type and shape, or raise ModelFailed; without *specs*, any."""
    outputs = _promised(answer, specs)
    if not specs:
        return {name: np.asarray(value) for name, value in outputs.items()}
    return {spec.name: _checked(outputs[spec.name], spec, [size, *spec.shape]) for spec in specs}


def _unpacked(answer: Any, specs: Sequence[TensorSpec], batch: Batch) -> dict[str, Array | Sequence[Array]]:
    """Return the outputs of a packed batch, checked: open ones come packed too, and are split into items.

    What is answered to the items behind the batch, which are nobody's, is left out.
    """
    outputs = _promised(answer, specs)
    lengths = [*batch.lengths, *batch.rest]
    items: dict[str, Array | Sequence[Array]] = {}
    for spec in specs:
        if spec.open_dimensions:
            packed = _checked(outputs[spec.name], spec, [sum(lengths), *spec.shape[1:]])
            items[spec.name] = packing.split(packed, lengths)[: batch.size]
        else:
            items[spec.name] = _checked(outputs[spec.name], spec, [len(lengths), *spec.shape])[: batch.size]
    return items


def _promised(answer: Any, specs: Sequence[TensorSpec]) -> Mapping[str, Any]:
    """Return an answer by name, with all that *specs* promise."""
    outputs = named(answer, [spec.name for spec in specs])
    for spec in specs:
        if spec.name not in outputs:
            raise ModelFailed(
                f"no output {spec.name}: the model answered with {', '.join(outputs) or 'none'}"
            )
    return outputs


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


def _checked(value: Any, spec: TensorSpec, promised: Sequence[int]) -> Array:
    array = _array(value, spec)
    if not _fits(array.shape, promised):
        raise ModelFailed(f"output {spec.name} has the shape {list(array.shape)} instead of {promised}")
    return array


def _fits(shape: Sequence[int], promised: Sequence[int]) -> bool:
    sizes = zip(promised, shape, strict=False)
    return len(shape) == len(promised) and all(wanted in (-1, size) for wanted, size in sizes)


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
