"""A program can say itself which of its threads is which: each thread has a class of its own.

    with marked("best-effort", name="train"):
        train()          # what this thread launches, and what others launch on its streams

`request_end` and `phase_end` are for what the gate cannot see by itself: where a request or an iteration ends
without waiting for the GPU, and where forward ends and backward begins (tick-tock).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from threading import local
from typing import Any

from astrarium.core.errors import AstrariumError, InputError

CLASSES = ("latency", "best-effort")
_NOBODY = -1
_mine = local()  # .marks: those of this thread, the innermost last


class NotUnderTheGate(AstrariumError):
    """The program was started without the gate."""


@contextmanager
def marked(kind: str, name: str = "") -> Iterator[None]:
    """Make the calling thread a client of its own inside the block."""
    if kind not in CLASSES:
        raise InputError("class", kind, " or ".join(CLASSES))
    marks: list[tuple[int, str]] = _marks()
    _mark(CLASSES.index(kind), name)
    marks.append((CLASSES.index(kind), name))
    try:
        yield
    finally:
        marks.pop()
        _mark(*(marks[-1] if marks else (_NOBODY, "")))


def request_end() -> None:
    """Say that what this client launched up to here was one request, or one iteration."""
    _function("request_end")()


def phase_end() -> None:
    """Say that a phase of training, forward or backward, ends here."""
    _function("phase_end")()


def _marks() -> list[tuple[int, str]]:
    if not hasattr(_mine, "marks"):
        _mine.marks = []
    marks: list[tuple[int, str]] = _mine.marks
    return marks


def _mark(number: int, name: str) -> None:
    if _function("mark_thread")(number, name.encode()) != 0:
        raise AstrariumError("the gate has no place for this thread: see what it wrote to standard error")


def _function(name: str) -> Callable[..., int]:
    function: Any = getattr(_gate(), f"astrarium_gate_{name}", None)
    if function is None:
        raise NotUnderTheGate(
            "this process does not run under the gate: start it with `astrarium gate run -- COMMAND`"
        )
    return function  # type: ignore[no-any-return]


@cache
def _gate() -> ctypes.CDLL:
    """Return the process itself as a library: what was preloaded is part of it."""
    return ctypes.CDLL(None)
