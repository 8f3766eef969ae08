"""One scenario, several policies: what `-p` says."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

FORM = "a policy, with parameters if any: timeout or timeout:timeout=10%,gather=fcfs"
S = TypeVar("S")


def variants_of(specs: Iterable[str], made: Callable[[str, dict[str, Any]], S]) -> dict[str, S]:
    """A scenario for each policy, *made* of its name and parameters."""
    from astrarium.core.errors import InputError

    found = {}
    for spec in specs:
        name, parameters = parse_policy(spec)
        try:
            variant = made(name, parameters)
        except InputError as error:
            raise error.read_from(f"-p {spec}") from None
        found[f"{name} ({spec.partition(':')[2]})" if parameters else name] = variant
    return found


def parse_policy(spec: str) -> tuple[str, dict[str, Any]]:
    """'timeout:timeout=10%,gather=fcfs' -> ('timeout', {'timeout': '10%', 'gather': 'fcfs'})"""
    from astrarium.core.decode import parse_yaml
    from astrarium.core.errors import InputError

    name, _, rest = spec.partition(":")
    pairs = [part.partition("=") for part in rest.split(",") if part]
    if not name or any(not key or not equals for key, equals, _ in pairs):
        raise InputError("-p", spec, FORM)
    return name, {key.strip(): parse_yaml(value, f"-p {spec}") for key, _, value in pairs}
