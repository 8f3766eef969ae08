"""From plain YAML data to typed structs, with errors that name the field.

The fields of msgspec structs say what is allowed; this walks them so that every error carries the full
dotted path (names of models included), the value, and the names that would have been right.
"""

from __future__ import annotations

import copy
import csv
import math
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec
import yaml

from astrarium.core.errors import InputError, one_of, read_from
from astrarium.core.quantities import Bytes, Duration, Rate, read_bytes, read_duration, read_rate

# YAML text as plain data; a key that stands twice is an error, since one of the two would be lost.


MOST_DEPTH = 100  # lists and mappings that stand in each other
MOST_VALUES = 1_000_000  # of a text with aliases, once these are written out
MOST_BITS = 1000  # of a whole number: a float can hold it, and Python can write it

_SCALARS = {
    "int": "a whole number of at most 300 digits",
    "float": "a number",
    "bool": "true or false",
    "timestamp": "a date that there is, such as 2026-11-23 (in quotes, if it is meant as text)",
}
_WRONG_SCALAR = (ValueError, ArithmeticError, LookupError, AttributeError)  # as PyYAML raises them


class _Loader(yaml.SafeLoader):
    """A loader that refuses what would take a reader's memory or stack, and names the line."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._aliases = False

    def get_single_node(self) -> yaml.Node | None:
        node: yaml.Node | None = super().get_single_node()
        if self._aliases and _written_out(node, {}) > MOST_VALUES:
            raise InputError(
                "", None, f"YAML of at most {MOST_VALUES:,} values, with all aliases written out"
            )
        return node

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        self._aliases |= isinstance(event, yaml.AliasEvent)
        if self._depth > MOST_DEPTH:
            expected = f"at most {MOST_DEPTH} lists and mappings in each other"
            raise InputError(f"line {event.start_mark.line + 1}", None, expected)
        self._depth += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            found = super().construct_object(node, deep)
        except _WRONG_SCALAR:
            raise _wrong_scalar(node) from None
        if isinstance(found, int) and found.bit_length() > MOST_BITS:
            raise _wrong_scalar(node)
        return found

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:bool":  # YAML 1.1 takes `on` for true: a key is a name
                key_node.tag = "tag:yaml.org,2002:str"
            key = (key_node.tag, key_node.value) if isinstance(key_node, yaml.ScalarNode) else None
            if key is not None and key in seen:
                raise InputError(
                    f"line {key_node.start_mark.line + 1}", key_node.value, "a key that stands only once"
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def _wrong_scalar(node: yaml.Node) -> InputError:
    expected = _SCALARS.get(str(node.tag).rpartition(":")[2], "a value that YAML can hold")
    value = node.value if isinstance(node, yaml.ScalarNode) else None
    return InputError(f"line {node.start_mark.line + 1}", value, expected)


def _written_out(node: Any, known: dict[yaml.Node, int]) -> int:
    """Return how many values there are where every alias is replaced by what it stands for."""
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if node not in known:
        known[node] = MOST_VALUES + 1  # what an alias inside of itself stands for has no end
        children = (each for pair in node.value for each in (pair if isinstance(pair, tuple) else (pair,)))
        known[node] = 1 + sum(_written_out(each, known) for each in children)
    return known[node]


# YAML 1.1 takes 1e5 for text: it wants 1.0e+5. People write 1e5, and mean the number.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+\Z"), list("+-0123456789")
)


def parse_yaml(text: str, source: str) -> Any:
    try:
        with read_from(source):
            return yaml.load(text, _Loader)
    except RecursionError:
        raise InputError("", None, "YAML that is not nested so deeply", source) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error)
        raise InputError(place, None, f"YAML: {problem}", source) from None


def csv_rows(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of CSV, each with the number of its line."""
    reader = csv.reader(lines)
    try:
        for cells in reader:
            yield reader.line_num, cells
    except csv.Error as error:
        raise InputError(f"line {reader.line_num}", None, f"CSV: {error}") from None


def read_yaml(path: Path, what: str = "a scenario file") -> Any:
    return parse_yaml(read_text(path, what), str(path))


def read_text(path: Path, what: str) -> str:
    """Read a text file; errors say *what* it should be."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError("", None, f"{what} that can be read: {error.strerror}", str(path)) from None
    except UnicodeDecodeError:
        raise InputError("", None, f"{what} in UTF-8", str(path)) from None


# `-o policy.name=eager`: changes to a scenario file before it is checked.


FORM = "KEY=VALUE, such as policy.name=eager or workload.rate=4000/s"
Named = Mapping[str, Callable[[Any], Any]]


def overridden(raw: Any, overrides: Sequence[str], named: Named | None = None) -> Any:
    """Return a changed copy; fields that no scenario has are left for the check to name.

    *named* holds the sections whose entries have names that must be there already, such as models, each with
    the function that writes a short form of the whole section out.
    """
    found = copy.deepcopy(raw)
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not all(_parts(key)):
            raise InputError("-o", text, FORM)
        _set_field(found, key, parse_yaml(value, f"-o {text}"), f"-o {text}", named or {})
    return found


def pairs(texts: Iterable[str], option: str, expected: str) -> dict[str, Any]:
    """Read what stands behind an option that is repeated: KEY=VALUE."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key.strip() or not equals:
            raise InputError(option, text, expected)
        found[key.strip()] = parse_yaml(value, f"{option} {text}")
    return found


def changed(raw: Any, changes: Mapping[str, Any], named: Named | None = None) -> Any:
    """Return a copy with fields changed as by `overridden`, to values that are read already."""
    found = copy.deepcopy(raw)
    for key, value in changes.items():
        if not all(_parts(key)):
            raise InputError("overrides", key, "the name of a field, such as policy.name or workload.rate")
        _set_field(found, key, value, "", named or {})
    return found


def plain(value: Any) -> Any:
    """Return a value as YAML could hold it: paths as text, tuples as lists, NumPy's numbers as Python's."""
    if callable(getattr(value, "plain", None)):  # a choice
        return plain(value.plain())
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    if isinstance(value, Path):
        return str(value)
    return value.tolist() if hasattr(value, "tolist") else value


def _parts(key: str) -> list[str]:
    return re.sub(r"\[(\d+)\]", r".\1", key.strip()).split(".")  # changes[0] as errors write it


def _set_field(raw: Any, key: str, value: Any, source: str, named: Named) -> None:
    if not isinstance(raw, dict):
        raise InputError(key, value, "a scenario file that is a mapping")
    parts = _parts(key)
    if (section := parts[0]) in named and len(parts) > 2:
        raw[section] = named[section](raw.get(section))
    place: Any = raw
    path: list[str] = []
    while True:
        name, parts = _next_name(place, parts)
        path.append(name)
        key = _key(place, name, source)
        if not parts:
            place[key] = value
            return
        if section in named and len(path) == 2 and key not in place:
            expected = (
                f"a {section.removesuffix('s')} of the file: {one_of([str(each) for each in place], name)}"
            )
            raise InputError(".".join(path), value, expected, source)
        inside = place.get(key) if isinstance(place, dict) else place[key]
        if not isinstance(inside, dict | list):  # a section the file leaves out, or a form without fields
            inside = place[key] = {}
        place = inside


def _next_name(place: Any, parts: list[str]) -> tuple[str, list[str]]:
    """Names may hold dots themselves: the longest that is there wins."""
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        if isinstance(place, dict) and name in place:
            return name, parts[length:]
    return parts[0], parts[1:]


def _key(place: Any, name: str, source: str) -> Any:
    if isinstance(place, dict):
        return int(name) if name.isdigit() and int(name) in place else name
    if name.isdigit() and int(name) < len(place):
        return int(name)
    raise InputError(name, None, f"a place in the list, from 0 to {len(place) - 1}", source)


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
            raise InputError(field, _told(raw), str(error)) from None

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
    return ", ".join(map(str, raw)) if isinstance(raw, dict) else _told(raw)


def constructed(kind: type[S], raw: Any, field: str, /, **values: Any) -> S:
    """Constructors know their own fields only: say where those stand."""
    try:
        return kind(**values)
    except InputError as error:
        raise error.at(field) from None
    except ValueError as error:
        raise InputError(field, _told(raw), str(error)) from None


def _told(raw: Any) -> Any:
    return "nothing" if raw is None else raw


def _decode_literal(names: list[str], raw: Any, field: str) -> str:
    if raw not in names:
        raise InputError(field, _told(raw), one_of(names, raw))
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
        raise InputError(field, _told(raw), _expected(str(error))) from None


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
