"""Limits are checked on every way in: a value beyond them must not reach a model.

One token beyond an embedding's rows ends a GPU's context, and with it every model that is loaded there.

Bounds count as numbers of the input's own type: `values: [0, 0.1]` of an FP32 input ends with the FP32 that
is nearest to 0.1. NaN is within no range, so `finite` is the range of all finite numbers. Native code
(`value_limits.h`) compares whole numbers only, of the same order as those that they stand for
(`native_bounds`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from astrarium.core.optional import extension
from astrarium.serving.live.ranges import RANGES, Number, is_real
from astrarium.serving.live.tensors import BF16, BYTES, DATATYPES, Array, TensorSpec, to_bfloat16

Data = bytes | bytearray | memoryview


class Violation(NamedTuple):
    """A violation is the first element of a tensor that breaks its limits, in the words of a refusal."""

    field: str
    value: Number
    expected: str

    def __str__(self) -> str:
        return f"{self.field}: expected {self.expected} (got {self.value!r})"


def violation(spec: TensorSpec, shape: Sequence[int], data: Data) -> Violation | None:
    """Return what is wrong with a tensor's values, or nothing; *shape* has the batch first."""
    if not spec.is_limited:
        return None
    at = first_outside(spec, data)
    if at is None:
        return None
    place = [int(index) for index in np.unravel_index(at, tuple(shape))]
    return Violation(f"input {spec.name}{place}", numbers(spec.datatype, data)[at].item(), expected(spec))


def expected(spec: TensorSpec) -> str:
    """Return what would be right, as refusals say it."""
    return "finite values" if spec.values is None else f"values from {spec.values[0]} to {spec.values[1]}"


def first_outside(spec: TensorSpec, data: Data) -> int | None:
    """Return the first element beyond the limits."""
    native = extension("_tensors")
    if native is None:
        return reference_first_outside(spec, data)
    first: int | None = native.first_outside(data, spec.datatype, *native_bounds(spec))
    return first


def reference_first_outside(spec: TensorSpec, data: Data) -> int | None:
    """Return the same without native code, which must agree."""
    values = numbers(spec.datatype, data)
    (low, high) = bounds(spec)
    outside = ~((values >= low) & (values <= high))
    return int(outside.argmax()) if outside.any() else None


def numbers(datatype: str, data: Data) -> Array:
    """Return the elements in a type that numpy compares: it has no BF16."""
    if datatype == BF16:
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, DATATYPES[datatype])


def bounds(spec: TensorSpec) -> tuple[Any, Any]:
    """Return the lowest and the highest number that the input takes, in the type of `numbers`."""
    stated = spec.values or RANGES[spec.datatype]
    is_bf16 = spec.datatype == BF16
    typed = to_bfloat16(np.array(stated)) if is_bf16 else np.array(stated, DATATYPES[spec.datatype])
    low, high = numbers(spec.datatype, typed.tobytes())
    return low, high


def padding_element(spec: TensorSpec) -> Any:
    """Return what items are padded with: zeros, or the nearest that the input takes; empty texts."""
    if spec.datatype == BYTES:
        return b""
    zero = np.zeros((), DATATYPES[spec.datatype])
    if spec.values is None:
        return zero
    low, high = bounds(spec)
    near = np.clip(np.zeros((), low.dtype), low, high)
    return to_bfloat16(near) if spec.datatype == BF16 else near


def native_bounds(spec: TensorSpec) -> tuple[int, int]:
    """Return the bounds as native code compares them: signed 64-bit numbers.

    The bits of a floating number, read as a whole one, have the same order, once those of negative numbers
    are turned around; -0 then comes before 0. Those of UINT64 keep their bits.
    """
    low, high = bounds(spec)
    if not is_real(spec.datatype):
        return _signed(int(low)), _signed(int(high))
    # Both zeros are within a range that begins or ends with one.
    return _ordered(spec.datatype, low or -abs(low)), _ordered(spec.datatype, high or abs(high))


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _ordered(datatype: str, value: Any) -> int:
    whole = np.array(value).view(f"i{np.array(value).itemsize}")
    bits = int(whole) >> 16 if datatype == BF16 else int(whole)
    return bits if bits >= 0 else bits ^ ((1 << 8 * DATATYPES[datatype].itemsize - 1) - 1)
