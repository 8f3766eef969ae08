"""Our compiled modules, which a source tree without a compiler does not have."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any


@cache
def extension(name: str) -> Any | None:
    """`_native` (simulation, policies), `_express` (servers), `_gate`, `_placement`, or None."""
    try:
        return import_module(f"astrarium.{name}")
    except ImportError:
        return None
