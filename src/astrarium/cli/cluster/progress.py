"""What happens on a live cluster is told line by line, on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from astrarium.cluster.live.arbiter import ArbiterProcess
from astrarium.cluster.report.words import ranges
from astrarium.cluster.state import AppRow
from astrarium.core.units import to_seconds


class Lines:
    """Only what has changed since the last look."""

    def __init__(self, office: ArbiterProcess) -> None:
        self._office = office
        self._apps: dict[int, tuple[bool, tuple[int, ...]]] = {}
        self._machines: dict[int, str] = {}

    def show(self) -> None:
        now = to_seconds(self._office.now())
        for line in (*self._of_machines(), *self._of_runs(), *self._of_apps()):
            print(f"{now:8.1f}s  {line}", file=sys.stderr, flush=True)

    def _of_machines(self) -> Iterator[str]:
        there = dict(self._office.live.memory.machines)
        for number in self._machines.keys() - there.keys():
            yield f"machine {number} ({self._machines[number]}) is gone"
        for number in there.keys() - self._machines.keys():
            gpus = self._office.state.floor.gpus_of[number]
            yield f"machine {number} ({there[number]}) is there: GPUs {ranges(gpus)}"
        self._machines = there

    def _of_runs(self) -> Iterator[str]:
        """Those that did not end as they should have."""
        for (app, job, run), seen in self._office.live.ended:
            if seen.ended in ("failed", "lost"):
                name, why = (
                    self._office.state.ledger.rows[app].app.name,
                    f": {seen.error}" if seen.error else "",
                )
                yield f"{name} job {job}, run {run} {seen.ended}{why}"

    def _of_apps(self) -> Iterator[str]:
        for number, row in self._office.state.ledger.rows.items():
            holds = row.open, tuple(sorted(row.leases))
            if self._apps.get(number) != holds:
                known = number in self._apps
                self._apps[number] = holds
                yield _told(row, known)


def _told(row: AppRow, known: bool) -> str:
    if not row.open:
        after = to_seconds(row.ended - row.arrived)
        why = f": {row.reason}" if row.reason else ""
        return f"{row.app.name} {row.outcome.name.lower()} after {after:.1f}s{why}"
    if row.leases:
        return f"{row.app.name} holds {ranges(sorted(row.leases))}"
    return f"{row.app.name} waits" if known else f"{row.app.name} has come, and waits"
