"""An arbiter whose disk is full, or cannot be written, waits until it can, and says so."""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from astrarium.cluster.live.arbiter import ArbiterProcess
from astrarium.cluster.live.store import waits
from astrarium.cluster.live.watching.console import say
from astrarium.cluster.live.watching.events import ClusterEvent
from astrarium.core.quantities import Time, to_seconds


class DiskWait:
    """What an arbiter does when the disk of its store is full, or cannot be written: it waits, says so, once
    and then now and then, and when it goes on. Events of both are written as soon as they can be."""

    # seconds: between words about the same, and of a turn that tells of a slow disk
    SAY = 60.0
    SLOW = 5.0

    def __init__(self, home: Path, arbiter: ArbiterProcess, observe: Callable[[str, Time], None]) -> None:
        self._home = home
        self._arbiter = arbiter
        self._observe = observe
        self._said_at = -self.SAY
        # turns in a row, and since when it waits
        self._failed = 0
        self._since = 0
        self._events: list[ClusterEvent] = []  # that are not written yet

    @property
    def missing(self) -> bool:
        """Return whether it waits. At the first turn that fails, the store makes room by itself if it can."""
        return self._failed > 1

    @contextmanager
    def waited_for(self) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            if not waits(error):
                raise
            self._failed += 1
            if self.missing:
                self._wait(f"{self._home} cannot be written ({error}); {self._needs()}")
            return
        if self.missing:
            self._go_on()
        elif time.monotonic() - began > self.SLOW:
            self._say(f"a turn took {time.monotonic() - began:.0f} s: the disk of {self._home} is slow")
        self._failed = 0
        self._tell()

    def _wait(self, reason: str) -> None:
        consequence = "nothing is decided until then, and jobs run on; Ctrl-C leaves them to the next arbiter"
        self._say(f"the arbiter waits: {reason}; {consequence}")
        if self._failed == 2:  # the first turn since it waits
            self._since = self._arbiter.now()
            self._events.append(self._arbiter.event("arbiter_waits", reason))
        self._observe("wait", self._arbiter.now() - self._since)
        self._tell()

    def _go_on(self) -> None:
        say(f"{self._home} can be written again: the arbiter goes on")
        self._said_at = -self.SAY
        waited = to_seconds(self._arbiter.now() - self._since)
        self._events.append(self._arbiter.event("arbiter_goes_on", f"it has waited {waited:.0f} s"))
        self._observe("wait", 0)

    def _tell(self) -> None:
        with suppress(sqlite3.Error):  # no room for that either: the next turn tries again
            if self._events:
                self._arbiter.store.tell(*self._events)
                self._events.clear()

    def _needs(self) -> str:
        free = shutil.disk_usage(self._home).free
        needs = self._arbiter.store.needs
        return f"{free / 1e6:.2f} MB are free there, about {needs / 1e6:.2f} MB are needed"

    def _say(self, words: str) -> None:
        if time.monotonic() - self._said_at >= self.SAY:
            self._said_at = time.monotonic()
            say(words)
