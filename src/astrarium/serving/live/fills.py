"""Inputs that the server fills itself tell a model what its items are: their lengths, or a mask over them.

A scenario names them (`lengths: LENGTHS`, `mask: ATTENTION_MASK`, `offsets: OFFSETS` of what is packed);
clients neither see nor send them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from astrarium.core.errors import InputError, one_of
from astrarium.serving.live import packing
from astrarium.serving.live.ranges import RANGES, Sizes, is_real
from astrarium.serving.live.tensors import BF16, BYTES, DATATYPES, Array, Fill, TensorSpec, to_bfloat16

Axis = tuple[str, int]  # the first input with an open dimension, and which of its dimensions that is
Shape = tuple[int, ...]
_ANY_LENGTH = (1 << 31) - 1  # what must fit where no range says how long items may be


def sent(specs: Iterable[TensorSpec]) -> tuple[TensorSpec, ...]:
    """Return the inputs that clients send."""
    return tuple(spec for spec in specs if spec.fill is None)


def axes_of(specs: Iterable[TensorSpec]) -> list[list[Axis]]:
    """Return the axes of a model, each with all dimensions of inputs that lie on it.

    Open dimensions at the same place with the same range are one axis, such as tokens and their types.
    """
    axes: dict[tuple[int, Sizes | None], list[Axis]] = {}
    for spec in sent(specs):
        for place in spec.open_dimensions:
            axes.setdefault((place, spec.sizes_of(place)), []).append((spec.name, place))
    return list(axes.values())


def marked(
    specs: Sequence[TensorSpec], lengths: str = "", mask: str = "", offsets: str = "", pack: bool = False
) -> tuple[TensorSpec, ...]:
    """Return the inputs, with a `fill` where the server fills one; InputError where it cannot be filled.

    With *pack*, those with an open dimension are packed.
    """
    named = {
        kind: name for kind, name in (("lengths", lengths), ("mask", mask), ("offsets", offsets)) if name
    }
    kinds = _kinds([spec.name for spec in specs], named)
    packing.check_fills(pack, named)
    known = {spec.name: spec for spec in specs}
    open_axes = axes_of(spec for spec in specs if spec.name not in kinds)
    axes = [axis[0] for axis in open_axes]
    if pack:
        packing.check_axes(axes)
    for name, kind in kinds.items():
        _check_axes(name, kind, axes)
        _CHECKS[kind](known[name], [(axis, known[axis[0]].sizes_of(axis[1])) for axis in axes])
    fills = {name: Fill(kind, tuple(axes)) for name, kind in kinds.items()}
    packed = {name for axis in open_axes for name, _ in axis} if pack else ()
    return tuple(replace(spec, fill=fills.get(spec.name), packed=spec.name in packed) for spec in specs)


def _kinds(known: Sequence[str], named: Mapping[str, str]) -> dict[str, str]:
    """Return how each of the *named* inputs is filled."""
    kinds: dict[str, str] = {}
    for kind, name in named.items():
        if name in kinds:
            raise InputError(kind, name, f"another input than that of `{kinds[name]}`")
        if name not in known:
            raise InputError(kind, name, f"the name of an input: {one_of(list(known), name)}")
        kinds[name] = kind
    return kinds


def _check_axes(name: str, kind: str, axes: Sequence[Axis]) -> None:
    if not axes:
        raise InputError(kind, name, "to be left out: no other input has an open dimension (-1, or a range)")
    if kind == "mask" and len({source for source, _ in axes}) > 1:
        unlike = " and ".join(f"dimension {place} of {source}" for source, place in axes)
        raise InputError(kind, name, f"open dimensions that a mask can be laid over, not {unlike}")


def _check_lengths(spec: TensorSpec, axes: Sequence[tuple[Axis, Sizes | None]]) -> None:
    shapes: list[Shape] = [(), (1,)] if len(axes) == 1 else [(len(axes),)]
    if spec.shape not in shapes:
        expected = f"the shape {' or '.join(str(list(shape)) for shape in shapes)}: a length for each axis"
        raise InputError("lengths", f"{spec.name} {list(spec.shape)}", expected)
    longest = max(range_[1] if range_ else _ANY_LENGTH for _, range_ in axes)
    if spec.datatype not in RANGES or is_real(spec.datatype) or RANGES[spec.datatype][1] < longest:
        expected = f"a whole type that holds lengths up to {longest}, such as INT64"
        raise InputError("lengths", f"{spec.name} {spec.datatype}", expected)


def _check_mask(spec: TensorSpec, axes: Sequence[tuple[Axis, Sizes | None]]) -> None:
    if spec.datatype == BYTES:
        raise InputError("mask", f"{spec.name} {BYTES}", "a type of numbers, or BOOL")
    ranges = [spec.sizes_of(place) for place in spec.open_dimensions]
    if len(ranges) != len(axes):
        wanted = ["-1" if range_ is None else f"{range_[0]}..{range_[1]}" for _, range_ in axes]
        expected = f"the open dimensions of {axes[0][0][0]}, such as [{', '.join(wanted)}]"
        raise InputError("mask", f"{spec.name} {list(spec.shape)}", expected)


def _check_offsets(spec: TensorSpec, axes: Sequence[tuple[Axis, Sizes | None]]) -> None:
    packing.check_offsets(spec)


_CHECKS = {"lengths": _check_lengths, "mask": _check_mask, "offsets": _check_offsets}


def check_sizes(specs: Sequence[TensorSpec], sizes: Sequence[Shape]) -> None:
    """Refuse the sizes of a profile where items have more open dimensions, or fewer."""
    axes = [f"dimension {place} of {name}" for (name, place), *_ in axes_of(specs)]
    if len(sizes[0]) != len(axes):
        form = "lengths such as 64" if len(axes) == 1 else f"sizes such as {'x'.join(['64'] * len(axes))}"
        along = f"{form}, along {' and '.join(axes)}"
        expected = along if axes else "to be left out: no dimension is open"
        raise InputError("profile.lengths", "x".join(map(str, sizes[0])), expected)


def check_lengths(specs: Sequence[TensorSpec], lengths: Sequence[int]) -> None:
    """Refuse the lengths of a profile where items have several: batches are padded along each axis."""
    if lengths and len(axes_of(specs)) > 1:
        check_sizes(specs, [(lengths[0],)])


def sized(specs: Sequence[TensorSpec], sizes: Sequence[int]) -> list[TensorSpec]:
    """Return the inputs with a fixed size along each axis."""
    size_of = {place: size for axis, size in zip(axes_of(specs), sizes, strict=True) for place in axis}
    return [spec if spec.fill else replace(spec, shape=_sized(spec, size_of)) for spec in specs]


def _sized(spec: TensorSpec, size_of: Mapping[Axis, int]) -> Shape:
    return tuple(size_of.get((spec.name, place), size) for place, size in enumerate(spec.shape))


def length_of(specs: Iterable[TensorSpec], arrays: Mapping[str, Array]) -> int:
    """Return how long the items of a batch are; 0 where they have no length, several, or are packed."""
    specs = list(specs)
    axes = axes_of(specs)
    if len(axes) != 1 or packing.is_packed(specs):
        return 0
    name, place = axes[0][0]
    return int(arrays[name].shape[1 + place])


def complete(specs: Iterable[TensorSpec], arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return the inputs of stacked items with those that the server fills, where nothing was padded."""
    specs = list(specs)
    own = {name: [array.shape[1:]] * len(array) for name, array in arrays.items()}
    packed = {spec.name: packing.flat(arrays[spec.name]) for spec in specs if spec.packed}
    return filled(specs, {**arrays, **packed}, own)


def filled(
    specs: Iterable[TensorSpec], arrays: Mapping[str, Array], own: Mapping[str, Sequence[Shape]]
) -> dict[str, Array]:
    """Return a batch's inputs with those that the server fills; *own* are the items' shapes, by input."""
    return {
        spec.name: arrays[spec.name] if spec.fill is None else _filled(spec, spec.fill, arrays, own)
        for spec in specs
    }


def _filled(
    spec: TensorSpec, fill: Fill, arrays: Mapping[str, Array], own: Mapping[str, Sequence[Shape]]
) -> Array:
    lengths = [np.array([shape[place] for shape in own[name]], np.int64) for name, place in fill.axes]
    kind = DATATYPES[spec.datatype]
    if fill.kind == "offsets":
        return packing.offsets_of(lengths[0]).astype(kind)
    if fill.kind == "lengths":
        return np.stack(lengths, axis=1).astype(kind).reshape(len(lengths[0]), *spec.shape)
    padded = [arrays[name].shape[1 + place] for name, place in fill.axes]
    return _mask(spec, lengths, padded)


def _mask(spec: TensorSpec, lengths: Sequence[Array], padded: Sequence[int]) -> Array:
    """Return a mask over items of these *lengths*, by axis, that were *padded* to so much."""
    size_of = dict(zip(spec.open_dimensions, padded, strict=True))
    shape = [size_of.get(place, size) for place, size in enumerate(spec.shape)]
    inside = np.ones((len(lengths[0]), *shape), np.bool_)
    for place, own in zip(spec.open_dimensions, lengths, strict=True):
        along = np.arange(shape[place]).reshape(-1, *[1] * (len(shape) - 1 - place))
        inside &= along < own.reshape(-1, *[1] * len(shape))
    return to_bfloat16(inside) if spec.datatype == BF16 else inside.astype(DATATYPES[spec.datatype])
