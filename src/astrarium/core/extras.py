"""Packages that only some of us need: where one is missing, the error says how to get it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from astrarium.core.errors import InputError


@contextmanager
def from_extra(name: str) -> Iterator[None]:
    """Around imports of packages that come with the extra *name*."""
    try:
        yield
    except ModuleNotFoundError as error:
        expected = f"the package {error.name}: pip install 'astrarium[{name}]'"
        raise InputError("", None, expected) from error
