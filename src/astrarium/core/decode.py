"""From plain YAML data to typed structs, with errors that name the field.

The fields of msgspec structs say what is allowed; this walks them so that every error carries the full
dotted path (names of models included), the value, and the names that would have been right.
"""

from __future__ import annotations

import math
import re
import types
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from astrarium.core.errors import InputError, one_of
from astrarium.core.quantities import Bytes, Duration, Rate, read_bytes, read_duration, read_rate

S = TypeVar("S", bound=msgspec.Struct)
Hook = Callable[[Any, str], Any]

QUANTITIES: dict[Any, Hook] = {
    Duration: lambda raw, field: read_duration(raw),
    Rate: lambda raw, field: read_rate(raw),
    Bytes: lambda raw, field: read_bytes(raw),
}
_WORDS = {"int": "a whole number", "float": "a number", "str": "text", "bool": "true or false"}


class Decoder:
    """*hooks* read the types that have a form of their own, besides quantities: (raw, field) -> value."""

    def __init__(self, hooks: Mapping[Any, Hook] = MappingProxyType({})) -> None:
        self._hooks = {**QUANTITIES, **hooks}

    def decode(self, kind: Any, raw: Any, field: str) -> Any:
        plain_kind = bare(kind)
        origin = get_origin(plain_kind)
        parts = get_args(plain_kind)
        if plain_kind in self._hooks:
            return self._decode_by_hook(self._hooks[plain_kind], raw, field)
        if origin in (Union, types.UnionType):
            return self._decode_union(parts, raw, field)
        if origin is Literal:
            return _decode_literal([str(name) for name in parts], raw, field)
        if origin in (tuple, list):
            return self._decode_list(parts[0], raw, field)
        if origin is dict:
            return self._decode_map(parts, raw, field)
        if isinstance(plain_kind, type) and issubclass(plain_kind, msgspec.Struct):
            return self.decode_struct(plain_kind, raw, field)
        return _decode_leaf(kind, raw, field)

    def decode_struct(self, kind: type[S], raw: Any, field: str) -> S:
        fields = {info.name: info for info in msgspec.structs.fields(kind)}
        check_keys(raw, list(fields), field)
        values = {}
        for name, info in fields.items():
            if name in raw:
                values[name] = self.decode(info.type, raw[name], joined(field, name))
            elif info.required:
                raise InputError(joined(field, name), None, "a value: this field is required")
        return constructed(kind, raw, field, **values)

    def _decode_by_hook(self, hook: Hook, raw: Any, field: str) -> Any:
        try:
            return hook(raw, field)
        except ValueError as error:
            raise InputError(field, _value_shown(raw), str(error)) from None

    def _decode_union(self, arms: tuple[Any, ...], raw: Any, field: str) -> Any:
        if raw is None and type(None) in arms:
            return None
        arms = tuple(arm for arm in arms if arm is not type(None))
        fitting = [arm for arm in arms if _shape(arm) == _shape_of(raw)]
        return self.decode(fitting[0] if fitting else arms[0], raw, field)

    def _decode_list(self, kind: Any, raw: Any, field: str) -> Any:
        if not isinstance(raw, list | tuple):
            raise InputError(field, raw, "a list")
        return tuple(self.decode(kind, value, f"{field}[{place}]") for place, value in enumerate(raw))

    def _decode_map(self, kinds: tuple[Any, ...], raw: Any, field: str) -> Any:
        if not isinstance(raw, dict):
            raise InputError(field, raw, "a mapping")
        for key in raw:
            _decode_leaf(kinds[0], key, joined(field, str(key)))
        return {key: self.decode(kinds[1], value, joined(field, str(key))) for key, value in raw.items()}


def bare(kind: Any) -> Any:
    """Return a type without what `Annotated` says of it."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def joined(field: str, name: str) -> str:
    return f"{field}.{name}" if field else name


def check_keys(raw: Any, names: list[str], field: str) -> None:
    if not isinstance(raw, dict):
        raise InputError(field, raw, f"a mapping with {', '.join(names)}")
    for key in raw:
        if key not in names:
            expected = one_of(names, key) if names else "no fields here"
            raise InputError(joined(field, str(key)), raw[key], expected)


def check_names(entries: Iterable[Any], section: str, item: str) -> None:
    """Refuse entries of a list, each with copies by other *names*, that share a name."""
    taken: set[str] = set()
    for place, entry in enumerate(entries):
        for name in dict.fromkeys([entry.name, *entry.names]):
            if name in taken:
                raise InputError(f"{section}[{place}].name", name, f"a name that no other {item} has")
            taken.add(name)


def keys_of(raw: Any) -> Any:
    """Return what a wrong file has, for an error: its keys where it is a mapping."""
    return ", ".join(map(str, raw)) if isinstance(raw, dict) else _value_shown(raw)


def constructed(kind: type[S], raw: Any, field: str, /, **values: Any) -> S:
    """Constructors know their own fields only: say where those stand."""
    try:
        return kind(**values)
    except InputError as error:
        raise error.at(field) from None
    except ValueError as error:
        raise InputError(field, _value_shown(raw), str(error)) from None


def _value_shown(raw: Any) -> Any:
    return "nothing" if raw is None else raw


def _decode_literal(names: list[str], raw: Any, field: str) -> str:
    if raw not in names:
        raise InputError(field, _value_shown(raw), one_of(names, raw))
    return str(raw)


def _decode_leaf(kind: Any, raw: Any, field: str) -> Any:
    if isinstance(raw, float) and raw.is_integer() and bare(kind) is not str:
        raw = int(raw)  # 1e5 is a number with a fraction to YAML; where one is wanted, a whole one will do
    if isinstance(raw, int | float) and not isinstance(raw, bool) and bare(kind) is str:
        raw = str(raw)  # YAML took it for a number; whoever reads the text says what is missing
    if isinstance(raw, float) and not math.isfinite(raw):
        raise InputError(field, raw, "a finite number")
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise InputError(field, _value_shown(raw), _expected(str(error))) from None


def _expected(message: str) -> str:
    """'Expected `int` >= 1 - at `$`' -> 'a whole number >= 1'."""
    text = re.sub(r" - at .*| *, got `.*`", "", message).removeprefix("Expected ")
    return re.sub(r"`(\w+)`", lambda match: _WORDS.get(match[1], match[1]), text)


def _shape(kind: Any) -> str:
    kind = bare(kind)
    origin = get_origin(kind)
    if origin in (tuple, list):
        return "list"
    is_struct = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    return "mapping" if origin is dict or is_struct else "scalar"


def _shape_of(raw: Any) -> str:
    return "list" if isinstance(raw, list | tuple) else "mapping" if isinstance(raw, dict) else "scalar"
