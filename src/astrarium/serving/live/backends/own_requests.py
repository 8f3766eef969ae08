"""Requests of somebody's own come from a file, so that a model is measured with what it really gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from astrarium.core.errors import InputError
from astrarium.serving.live import fills, limits
from astrarium.serving.live.backends import batches
from astrarium.serving.live.backends.contract import Batch
from astrarium.serving.live.tensors import BF16, BYTES, DATATYPES, Array, TensorSpec, to_bfloat16, to_bytes

LENGTHS = "lengths"  # the array that says how long requests are
_ENOUGH = 256  # requests of one length, to draw batches from
_Sizes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class OwnRequests:
    """Own requests have an array for each input that clients send, with a row for each request.

    Where inputs have open dimensions, `lengths` has a row for each request and a column for each axis; behind
    its own length a row repeats itself.
    """

    axes: Sequence[Sequence[fills.Axis]]
    arrays: Mapping[str, Array]
    lengths: _Sizes

    def between(self, low: Sequence[int], high: Sequence[int]) -> dict[str, Array]:
        """Return inputs of exactly the sizes *high*, by axis: of requests above *low* and up to that.

        They are repeated up to it. Where there are none, all others are, or what is too long is cut off.
        """
        fits = ((self.lengths > low) & (self.lengths <= high)).all(axis=1)
        rows = np.flatnonzero(fits if fits.any() else np.ones_like(fits))
        rows = rows[:: -(-len(rows) // _ENOUGH)]
        chosen = {name: array[rows] for name, array in self.arrays.items()}
        return _repeated(chosen, self.axes, self.lengths[rows], high)


def read(path: Path, specs: Sequence[TensorSpec]) -> OwnRequests:
    """Return the requests of a file of numpy.savez: an array for each input, a row for each request."""
    specs = fills.sent(specs)
    axes = fills.axes_of(specs)
    names = [spec.name for spec in specs] + [LENGTHS] * bool(axes)
    arrays = _arrays(path, names, _form(names, axes))
    rows = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    if len(set(rows.values())) != 1 or 0 in rows.values():
        raise InputError("", rows, "as many rows of every input, at least one", str(path))
    fitting = {spec.name: _fitting(spec, arrays[spec.name], str(path)) for spec in specs}
    (count,) = set(rows.values())
    lengths = np.ones((count, 0), np.int64)
    if axes:
        lengths = _lengths(arrays[LENGTHS], {spec.name: spec for spec in specs}, axes, fitting, str(path))
        most = [max(fitting[name].shape[1 + place] for name, place in axis) for axis in axes]
        fitting = _repeated(fitting, axes, lengths, most)
    for spec in specs:
        if violation := limits.violation(spec, fitting[spec.name].shape, to_bytes(fitting[spec.name])):
            raise InputError(violation.field, violation.value, violation.expected, str(path))
    return OwnRequests(axes, fitting, lengths)


def drawn(
    specs: Sequence[TensorSpec], data: Mapping[str, Array], size: int, generator: np.random.Generator
) -> Batch:
    """Return a batch of requests by chance out of *data*."""
    rows = generator.integers(len(next(iter(data.values()))), size=size)
    return batches.alike(specs, {name: array[rows] for name, array in data.items()})


def _form(names: Sequence[str], axes: Sequence[Sequence[fills.Axis]]) -> str:
    form = f"a file of numpy.savez with the arrays {', '.join(names)}"
    if not axes:
        return form
    each = "how long each request is" if len(axes) == 1 else f"the {len(axes)} sizes of each request"
    return f"{form}: rows are padded to the longest, and `{LENGTHS}` says {each}"


def _arrays(path: Path, names: Sequence[str], expected: str) -> dict[str, Array]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
    except (
        OSError,
        ValueError,
        EOFError,
        BadZipFile,
        TypeError,
    ) as error:  # the last: one array, not several
        raise InputError("", str(path), f"{expected} ({error})") from None
    if sorted(arrays) != sorted(names):
        raise InputError("", sorted(arrays), expected, str(path))
    return arrays


def _fitting(spec: TensorSpec, array: Array, source: str) -> Array:
    """Return an array as the input has it; how long its open dimensions are is no matter yet."""
    kind = np.dtype(np.float32) if spec.datatype == BF16 else DATATYPES[spec.datatype]
    same = array.dtype.kind in "SU" if spec.datatype == BYTES else np.can_cast(array.dtype, kind, "same_kind")
    sizes = zip(spec.shape, array.shape[1:], strict=False)
    alike = array.ndim == 1 + len(spec.shape) and all(wanted in (-1, size) for wanted, size in sizes)
    if not same or not alike:
        expected = f"{spec.datatype} with rows of the shape {list(spec.shape)}"
        raise InputError(spec.name, f"{array.dtype} {list(array.shape[1:])}", expected, source)
    return to_bfloat16(array) if spec.datatype == BF16 else array.astype(kind)


def _lengths(
    raw: Array,
    specs: Mapping[str, TensorSpec],
    axes: Sequence[Sequence[fills.Axis]],
    arrays: Mapping[str, Array],
    source: str,
) -> _Sizes:
    if raw.dtype.kind not in "iu" or raw.shape not in ((len(raw), len(axes)), (len(raw),) * (len(axes) == 1)):
        shape = f"[{len(raw)}]" if len(axes) == 1 else f"[{len(raw)}, {len(axes)}], a column for each axis"
        raise InputError(
            LENGTHS, f"{raw.dtype} {list(raw.shape)}", f"whole numbers of the shape {shape}", source
        )
    lengths: _Sizes = raw.astype(np.int64).reshape(len(raw), len(axes))
    for column, axis in enumerate(axes):
        low, high = specs[axis[0][0]].sizes_of(axis[0][1]) or (1, 1 << 30)
        high = min(high, *(arrays[name].shape[1 + place] for name, place in axis))
        wrong = np.flatnonzero((lengths[:, column] < low) | (lengths[:, column] > high))
        if len(wrong):
            field = f"{LENGTHS}[{wrong[0]}]" + f"[{column}]" * (len(axes) > 1)
            expected = f"from {low} to {high}, as {axis[0][0]} and its rows are"
            raise InputError(field, int(lengths[wrong[0], column]), expected, source)
    return lengths


def _repeated(
    arrays: Mapping[str, Array], axes: Sequence[Sequence[fills.Axis]], lengths: _Sizes, sizes: Sequence[int]
) -> dict[str, Array]:
    """Return arrays of these *sizes*, by axis: each row has what is in it up to its own length, repeated."""
    repeated: dict[str, Any] = dict(arrays)
    for axis, own, size in zip(axes, lengths.T, sizes, strict=True):
        source = np.arange(size) % own[:, None]
        for name, place in axis:
            array = repeated[name]
            shape = [len(own), *(size if at == place else 1 for at in range(array.ndim - 1))]
            repeated[name] = np.take_along_axis(array, source.reshape(shape), axis=1 + place)
    return repeated
