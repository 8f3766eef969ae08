"""Slow work says what it is doing: on stderr, once it has taken two seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Event, Thread
from time import monotonic

PATIENCE = 2.0  # seconds: people who wait for longer wonder whether anything happens
# between words on a terminal, and between lines of a log
EVERY_SECOND = 1.0
SELDOM = 10.0

Say = Callable[[str], object]
_is_quiet: ContextVar[bool] = ContextVar("is_quiet", default=False)


@contextmanager
def quiet() -> Iterator[None]:
    """Tell nothing of what is waited for inside: who asked for no progress is not told of any."""
    before = _is_quiet.set(True)
    try:
        yield
    finally:
        _is_quiet.reset(before)


@contextmanager
def waiting(what: str, say: Say | None = None) -> Iterator[None]:
    """Tell *what* the block is doing, and for how long: on a terminal in one line that changes and goes with
    the block, elsewhere in a line now and then. *say* gets these lines in place of stderr."""
    if _is_quiet.get():
        yield
        return
    over = Event()
    show = _on_terminal if say is None and sys.stderr.isatty() else _in_lines
    thread = Thread(target=show, args=(what, over, say or _print), daemon=True, name="waiting")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _in_lines(what: str, over: Event, say: Say) -> None:
    began = monotonic()
    pause = PATIENCE
    while not over.wait(pause):
        say(f"{what} ... {monotonic() - began:.0f} s")
        pause = SELDOM


def _on_terminal(what: str, over: Event, say: Say) -> None:
    began = monotonic()
    if over.wait(PATIENCE):
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status("") as status:
        while not over.is_set():
            status.update(Text(f"{what} ... {monotonic() - began:.0f} s"))
            over.wait(EVERY_SECOND)


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
