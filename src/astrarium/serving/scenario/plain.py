"""A scenario is written as plain data that loads back equal: the inverse of reading."""

from __future__ import annotations

import types
from typing import Any, Union, get_args, get_origin

import msgspec

from astrarium.core.decode import bare
from astrarium.core.distributions import Constant, Distribution, Modes, Samples
from astrarium.core.lengths import ConstantLength, LengthDistribution, SampledLength, WeightedLength
from astrarium.core.profiles import BySize, Profile, Table
from astrarium.core.quantities import (
    Bytes,
    Duration,
    Rate,
    write_bytes,
    write_duration,
    write_rate,
)
from astrarium.core.size_grid import written
from astrarium.serving.scenario.tensor_entries import BackendChoice

_WRITERS: dict[Any, Any] = {Duration: write_duration, Rate: write_rate, Bytes: write_bytes}


def plain_value(kind: Any, value: Any) -> Any:
    kind = bare(kind)
    if kind in _WRITERS:
        return _WRITERS[kind](value)
    if isinstance(value, msgspec.Struct):
        return _plain_struct(value)
    if get_origin(kind) in (Union, types.UnionType):
        return plain_value(_arm(get_args(kind), value), value)
    if isinstance(value, tuple | list):
        return [plain_value(get_args(kind)[0], item) for item in value]
    if isinstance(value, dict):
        inner = get_args(kind)[1] if get_args(kind) else Any
        return {key: plain_value(inner, item) for key, item in value.items()}
    return value


def _plain_struct(value: msgspec.Struct) -> Any:
    if isinstance(value, BackendChoice):
        return value.plain()
    if isinstance(value, Table):
        return {"table": plain_value(dict[int, Duration], value.points)}
    if isinstance(value, BySize):
        return _plain_sizes(value)
    if isinstance(value, Constant):
        return {"constant": write_duration(value.time)}
    if isinstance(value, Modes):
        return {"modes": [_plain_fields(mode) for mode in value.modes]}
    if isinstance(value, Samples):
        return {"samples": value.file or plain_value(tuple[Duration, ...], value.times)}
    if isinstance(value, ConstantLength):
        return {"constant": value.length}
    if isinstance(value, WeightedLength):
        return {"weights": dict(value.weights)}
    if isinstance(value, SampledLength):
        return {"samples": value.file or list(value.lengths)}
    fields = _plain_fields(value)
    tagged = (
        isinstance(value, Profile | Distribution | LengthDistribution)
        and value.form
        and value.form not in fields
    )
    return {value.form: fields} if tagged else fields  # type: ignore[attr-defined]


def _plain_sizes(profile: BySize) -> dict[str, Any]:
    tables = zip(profile.sizes, profile.lengths.values(), strict=True)
    plain: dict[str, Any] = {
        "lengths": {written(size): plain_value(dict[int, Duration], table) for size, table in tables}
    }
    return plain if profile.together == "bucket" else {**plain, "together": profile.together}


def _plain_fields(value: msgspec.Struct) -> dict[str, Any]:
    """Return the fields that are not at their default."""
    fields = {}
    for info in msgspec.structs.fields(value):
        present = getattr(value, info.name)
        default = info.default if info.default_factory is msgspec.NODEFAULT else info.default_factory()
        if info.required or present != default:
            fields[info.name] = plain_value(info.type, present)
    return fields


def _arm(arms: tuple[Any, ...], value: Any) -> Any:
    """Return the arm of a union that a value belongs to: its type's container, else the one that is none."""
    if value is None:
        return type(None)
    containers = [arm for arm in arms if get_origin(arm) is type(value)]
    scalars = [arm for arm in arms if get_origin(arm) not in (dict, tuple) and arm is not type(None)]
    return (containers or scalars)[0]
