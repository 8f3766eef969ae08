"""What happens on a live cluster is told to its operator line by line, on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from astrarium.cluster.live.arbiter import ArbiterProcess
from astrarium.cluster.state import AppRow
from astrarium.core.quantities import to_seconds
from astrarium.run.tables import ranges


def say(words: str) -> None:
    """Tell the operator, unless stderr goes to the same full disk."""
    with suppress(OSError):
        print(words, file=sys.stderr, flush=True)


class Lines:
    """Only what has changed since the last look."""

    def __init__(self, arbiter: ArbiterProcess) -> None:
        self._arbiter = arbiter
        self._apps: dict[int, tuple[bool, tuple[int, ...]]] = {}
        self._machines: dict[int, str] = {}
        self._failed: set[int] = set()
        self._held_up: dict[Any, str] = {}
        self._troubled: set[Any] = set()  # runs whose trouble was told

    def show(self) -> None:
        now = to_seconds(self._arbiter.now())
        for line in (*self._of_machines(), *self._of_gpus(), *self._of_runs(), *self._of_apps()):
            say(f"{now:8.1f}s  {line}")

    def _of_machines(self) -> Iterator[str]:
        there = dict(self._arbiter.live.memory.machines)
        for number in self._machines.keys() - there.keys():
            yield f"machine {number} ({self._machines[number]}) is gone"
        for number in there.keys() - self._machines.keys():
            gpus = self._arbiter.state.floor.gpus_of[number]
            yield f"machine {number} ({there[number]}) is there: GPUs {ranges(gpus)}"
        self._machines = there

    def _of_gpus(self) -> Iterator[str]:
        state = self._arbiter.state
        for gpu in sorted(state.failed.keys() - self._failed):
            machine, number = state.floor.place(gpu)
            yield f"GPU {gpu} ({machine}:{number}) is out of use: {state.failed[gpu].why}"
        for gpu in sorted(self._failed - state.failed.keys()):
            yield f"GPU {gpu} is {'in use again' if state.floor.has(gpu) else 'gone'}"
        self._failed = set(state.failed)

    def _of_runs(self) -> Iterator[str]:
        """Those that did not end, or begin, as they should have."""
        rows = self._arbiter.state.ledger.rows
        before = self._held_up
        self._held_up = dict(self._arbiter.live.held_up)
        for app, job, run in self._held_up.keys() - before.keys():
            why = self._held_up[app, job, run]
            yield f"{rows[app].app.name} job {job}, run {run} cannot begin yet: {why}"
        for (app, job, run), words in self._arbiter.live.troubles.items():
            if (app, job, run) not in self._troubled:
                yield f"{rows[app].app.name} job {job}, run {run} goes on: {words}"
        self._troubled |= self._arbiter.live.troubles.keys()
        for (app, job, run), seen in self._arbiter.live.ended:
            if seen.ended in ("failed", "not found", "lost"):
                why = f": {seen.error}" if seen.error else ""
                yield f"{rows[app].app.name} job {job}, run {run} {seen.ended}{why}"

    def _of_apps(self) -> Iterator[str]:
        for number, row in self._arbiter.state.ledger.rows.items():
            holds = row.open, tuple(sorted(row.leases))
            if self._apps.get(number) != holds:
                known = number in self._apps
                self._apps[number] = holds
                yield _app_line(row, known)


def _app_line(row: AppRow, known: bool) -> str:
    if not row.open:
        after = to_seconds(row.ended - row.arrived)
        why = f": {row.reason}" if row.reason else ""
        return f"{row.app.name} {row.outcome.name.lower()} after {after:.1f}s{why}"
    if row.leases:
        return f"{row.app.name} holds {ranges(sorted(row.leases))}"
    return f"{row.app.name} waits" if known else f"{row.app.name} has come, and waits"
