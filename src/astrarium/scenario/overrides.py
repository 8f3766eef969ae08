"""`-o policy.name=eager`: changes to a scenario file before it is checked."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from astrarium.core.errors import InputError, one_of
from astrarium.scenario.yaml_file import parse_yaml

FORM = "KEY=VALUE, such as policy.name=eager or workload.rate=4000/s"
Named = Mapping[str, Callable[[Any], Any]]


def overridden(raw: Any, overrides: Sequence[str], named: Named | None = None) -> Any:
    """Return a changed copy; fields that no scenario has are left for the check to name.

    *named* holds the sections whose entries have names that must be there already, such as models, each with
    the function that writes a short form of the whole section out.
    """
    changed = copy.deepcopy(raw)
    for text in overrides:
        key, equals, value = text.partition("=")
        parts = re.sub(r"\[(\d+)\]", r".\1", key.strip()).split(".")  # changes[0] as errors write it
        if not equals or not all(parts):
            raise InputError("-o", text, FORM)
        if not isinstance(changed, dict):
            raise InputError(key, value, "a scenario file that is a mapping")
        _set(changed, parts, parse_yaml(value, f"-o {text}"), text, named or {})
    return changed


def _set(raw: dict[str, Any], parts: list[str], value: Any, text: str, named: Named) -> None:
    if (section := parts[0]) in named and len(parts) > 2:
        raw[section] = named[section](raw.get(section))
    place: Any = raw
    path: list[str] = []
    while True:
        name, parts = _next_name(place, parts)
        path.append(name)
        key = _key(place, name, text)
        if not parts:
            place[key] = value
            return
        if section in named and len(path) == 2 and key not in place:
            expected = (
                f"a {section.removesuffix('s')} of the file: {one_of([str(each) for each in place], name)}"
            )
            raise InputError(".".join(path), value, expected, f"-o {text}")
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


def _key(place: Any, name: str, text: str) -> Any:
    if isinstance(place, dict):
        return int(name) if name.isdigit() and int(name) in place else name
    if name.isdigit() and int(name) < len(place):
        return int(name)
    raise InputError(name, None, f"a place in the list, from 0 to {len(place) - 1}", f"-o {text}")
