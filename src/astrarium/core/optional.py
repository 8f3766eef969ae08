"""What an installation may lack: our compiled modules, and packages that only an extra brings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

from astrarium.core.errors import InputError


@cache
def extension(name: str) -> Any | None:
    """Return a compiled module by its name, such as `_simulator`, or None where it is not there.

    `native/README.md` says which ones there are, and what each holds."""
    try:
        return import_module(f"astrarium.{name}")
    except ImportError:
        return None


@contextmanager
def from_extra(name: str) -> Iterator[None]:
    """Around imports of packages that come with the extra *name*."""
    try:
        yield
    except ModuleNotFoundError as error:
        expected = f"the package {error.name}: pip install 'astrarium[{name}]'"
        raise InputError("", None, expected) from error
