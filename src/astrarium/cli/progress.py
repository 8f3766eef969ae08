"""Progress on stderr: a bar or a changing line on a terminal, a line of a log now and then elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from astrarium.run.waiting import waiting

if TYPE_CHECKING:
    pass


@contextmanager
def bar(title: str, total: int) -> Iterator[Callable[[int], None] | None]:
    """Called with how far the work is. None without a terminal: then nothing is paid for it either, and only
    how long the work takes is told."""
    if not sys.stderr.isatty() or total <= 0:
        with waiting(title):
            yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=total)
        yield _seldom(lambda done: progress.update(task, completed=done), total // 200 + 1)


def _seldom(report: Callable[[int], None], step: int) -> Callable[[int], None]:
    """Called a million times, reports a few hundred."""
    due = 0

    def move(done: int) -> None:
        nonlocal due
        if done >= due:
            due = done + step
            report(done)

    return move


@contextmanager
def status(title: str) -> Iterator[Callable[[str], None] | None]:
    """For work of unknown length: what it is doing now."""
    if not sys.stderr.isatty():
        with waiting(title):
            yield None
        return
    from rich.console import Console

    with Console(stderr=True).status(title) as spinner:
        yield lambda step: spinner.update(f"{title}: {step}")
