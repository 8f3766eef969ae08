"""Overrides change fields of a scenario file before it is checked: `-o policy.name=eager`."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from astrarium.core.errors import InputError, one_of
from astrarium.core.plain_data import parse_yaml

FORM = "KEY=VALUE, such as policy.name=eager or workload.rate=4000/s"
Named = Mapping[str, Callable[[Any], Any]]


def overridden(raw: Any, overrides: Sequence[str], named: Named | None = None) -> Any:
    """Return a changed copy; fields that no scenario has are left for the check to name.

    *named* holds the sections whose entries have names that must be there already, such as models, each with
    the function that writes a short form of the whole section out.
    """
    changed_copy = copy.deepcopy(raw)
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not all(_parts(key)):
            raise InputError("-o", text, FORM)
        _set_field(changed_copy, key, parse_yaml(value, f"-o {text}"), f"-o {text}", named or {})
    return changed_copy


def pairs(texts: Iterable[str], option: str, expected: str) -> dict[str, Any]:
    """Read what stands behind an option that is repeated: KEY=VALUE."""
    values = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key.strip() or not equals:
            raise InputError(option, text, expected)
        values[key.strip()] = parse_yaml(value, f"{option} {text}")
    return values


def changed(raw: Any, changes: Mapping[str, Any], named: Named | None = None) -> Any:
    """Return a copy with fields changed as by `overridden`, to values that are read already."""
    changed_copy = copy.deepcopy(raw)
    for key, value in changes.items():
        if not all(_parts(key)):
            raise InputError("overrides", key, "the name of a field, such as policy.name or workload.rate")
        _set_field(changed_copy, key, value, "", named or {})
    return changed_copy


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
                f"a {section.removesuffix('s')} of the file: {one_of([str(entry) for entry in place], name)}"
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
