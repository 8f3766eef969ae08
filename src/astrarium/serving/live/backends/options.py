"""Options of a backend are checked by hand: machines with GPUs may have few packages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from astrarium.core.errors import InputError, one_of


def check_known(options: Mapping[str, Any], known: Sequence[str]) -> None:
    for name, value in options.items():
        if name not in known:
            raise InputError(name, value, one_of(list(known), name))


def flag(options: Mapping[str, Any], name: str, default: bool) -> bool:
    value = options.get(name, default)
    if not isinstance(value, bool):
        raise InputError(name, value, "true or false")
    return value


def count(options: Mapping[str, Any], name: str, default: int) -> int:
    value = options.get(name, default)
    if not is_count(value):
        raise InputError(name, value, "a whole number >= 1")
    return int(value)


def choice(options: Mapping[str, Any], name: str, names: Sequence[str]) -> str | None:
    """Return the option's value, one of *names*; None where it is not given."""
    value = options.get(name)
    if value is not None and value not in names:
        raise InputError(name, value, one_of(list(names), value))
    return value


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
