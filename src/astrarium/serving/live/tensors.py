"""Tensors are those of the Open Inference Protocol: named, typed, row-major, little-endian.

Needs nothing but numpy: workers on machines with few packages use it too. Native code, if there is any, makes
objects of the elements of BYTES, and bytes of them again: a batch may have very many.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from astrarium.core.optional import extension
from astrarium.serving.live.ranges import Sizes, Values

Array = npt.NDArray[Any]

BYTES = "BYTES"  # elements of any length: each is a 32-bit length and its bytes
BF16 = "BF16"  # the upper half of an FP32; numpy has no such number, so an element is its bits
DATATYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    **{f"UINT{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    BF16: np.dtype([("bfloat16", "<u2")]),
    BYTES: np.dtype(np.object_),
}
_NAMES = {dtype: name for name, dtype in DATATYPES.items()}


class Fill(NamedTuple):
    """A fill says what the server puts into an input that no client sends, of each item.

    `lengths` are the item's sizes along the axes; a `mask` is 1 where the item has elements along them, and 0
    where it was padded. An axis is a dimension of another input. `offsets` say where the items of a packed
    batch begin, and where the last one ends: there is one more of them than items.
    """

    kind: str  # "lengths", "mask" or "offsets"
    axes: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class TensorSpec:
    """A tensor spec is one input or output of a model; the shape is of one item, -1 is any size.

    An input may be limited to `values` from one to another, both included, or to `finite` ones: calls with
    others are refused (`limits.py`). Its open dimensions may be limited to `ranges`, one for each dimension
    or none at all. An input with a `fill` is not sent by clients. A `packed` one has the items of a batch one
    after another along their first dimension, which is open.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: Values | None = None
    finite: bool = False
    ranges: tuple[Sizes | None, ...] = ()
    fill: Fill | None = None
    packed: bool = False

    @property
    def is_limited(self) -> bool:
        return self.finite or self.values is not None

    @cached_property
    def item_bytes(self) -> int | None:
        """Return the bytes of one item, or None where they vary."""
        if self.datatype == BYTES or -1 in self.shape:
            return None
        return prod(self.shape) * DATATYPES[self.datatype].itemsize

    @property
    def open_dimensions(self) -> list[int]:
        return [place for place, size in enumerate(self.shape) if size < 0]

    def sizes_of(self, dimension: int) -> Sizes | None:
        """Return the range of a dimension, or None where it may have any size."""
        size = self.shape[dimension]
        return (self.ranges[dimension] if self.ranges else None) if size < 0 else (size, size)

    def admits(self, shape: tuple[int, ...]) -> bool:
        """Whether *shape* (of one item) fits."""
        return (
            len(shape) == len(self.shape)
            and all(wanted in (-1, size) for wanted, size in zip(self.shape, shape, strict=True))
            and self.beyond_range(shape) is None
        )

    def beyond_range(self, shape: tuple[int, ...]) -> int | None:
        """Return the first dimension of a *shape* (of one item, of our rank) that is out of its range."""
        for place, (range_, size) in enumerate(zip(self.ranges, shape, strict=False)):
            if range_ is not None and self.shape[place] < 0 and not range_[0] <= size <= range_[1]:
                return place
        return None


class Tensor(NamedTuple):
    """A tensor has its batch dimension first, and its bytes in the protocol's binary layout."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes | bytearray | memoryview


def datatype_of(array: Array) -> str:
    if array.dtype.kind in "OSU":
        return BYTES
    if (known := _NAMES.get(array.dtype)) is not None:
        return known
    name = str(array.dtype)  # making that text takes long
    return BF16 if name == "bfloat16" else name  # of the package ml_dtypes


def to_bfloat16(array: Array) -> Array:
    """Return the nearest BF16 of each number, of two equally near the even one."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    rounded = (bits + (0x7FFF + (bits >> 16 & 1))) >> 16
    return np.where(np.isnan(array), 0x7FC0, rounded).astype(np.uint16).view(DATATYPES[BF16])


def to_array(tensor: Tensor) -> Array:
    """Return a view on the tensor's bytes; elements of BYTES are copied out."""
    if tensor.datatype == BYTES:
        elements = np.empty(prod(tensor.shape), np.object_)
        elements[:] = unpack_bytes(tensor.data)
        return elements.reshape(tensor.shape)
    return np.frombuffer(tensor.data, DATATYPES[tensor.datatype]).reshape(tensor.shape)


def to_bytes(array: Array) -> bytes | memoryview:
    """Return the binary layout of *array*: a view where it lies contiguous already."""
    if array.dtype.kind in "OSU":
        return pack_bytes(array.ravel().tolist())
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data if array.size else b""


def pack_bytes(elements: list[Any]) -> bytes:
    """Return the binary layout of texts or bytes."""
    native = extension("_tensors")
    packed: bytes | None = native.pack_bytes(elements) if native is not None else None
    if packed is not None:
        return packed
    encoded = map(_as_bytes, elements)
    return b"".join(len(element).to_bytes(4, "little") + element for element in encoded)


def unpack_bytes(data: bytes | bytearray | memoryview) -> list[bytes]:
    """Return the elements of BYTES; ValueError where the lengths do not add up to the data."""
    native = extension("_tensors")
    elements: list[bytes] | None = native.unpack_bytes(data) if native is not None else None
    return _unpacked(data) if elements is None else elements


def _unpacked(data: bytes | bytearray | memoryview) -> list[bytes]:
    elements = []
    at = 0
    view = memoryview(data)
    while at < len(view):
        start = at + 4
        at = start + int.from_bytes(view[at:start], "little")
        if at > len(view):
            raise ValueError("an element's length reaches past the end of the data")
        elements.append(bytes(view[start:at]))
    return elements


def _as_bytes(element: Any) -> bytes:
    return element.encode() if isinstance(element, str) else bytes(element)
