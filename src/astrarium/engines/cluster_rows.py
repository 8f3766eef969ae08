"""The rows that people read: apps, jobs, leases, runs and decisions, written as steps are.

A lease is one GPU in the hands of one app, over all renewals. It is `open` until it has `expired`, was
`revoked`, is `lost` with its machine, or `returned` by an app that ended.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

import msgspec

from astrarium.cluster.actions import Grant, Revoke, Run
from astrarium.cluster.events import AppArrived, JobFinished, MachineJoined, MachineLost
from astrarium.cluster.ledger import AppRow, JobRow, Outcome
from astrarium.cluster.live_memory import Ended
from astrarium.cluster.state import ClusterState
from astrarium.core.trace import Step
from astrarium.core.units import Time

SCHEMA = (
    "CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value)",
    "CREATE TABLE IF NOT EXISTS steps (n INTEGER PRIMARY KEY, now INTEGER, events TEXT, actions TEXT)",
    """CREATE TABLE IF NOT EXISTS apps (id INTEGER PRIMARY KEY, name TEXT UNIQUE, task TEXT,
       submitted INTEGER, arrived INTEGER, ended INTEGER, outcome TEXT DEFAULT 'submitted', reason TEXT)""",
    """CREATE TABLE IF NOT EXISTS jobs (app INTEGER, job INTEGER, phase INTEGER, outcome TEXT, run INTEGER,
       done INTEGER, work INTEGER, PRIMARY KEY (app, job))""",
    """CREATE TABLE IF NOT EXISTS leases (id INTEGER PRIMARY KEY, app INTEGER, gpu INTEGER, machine INTEGER,
       since INTEGER, until INTEGER, renewed INTEGER DEFAULT 0, ended INTEGER,
       outcome TEXT DEFAULT 'open')""",
    """CREATE TABLE IF NOT EXISTS runs (app INTEGER, job INTEGER, run INTEGER, gpus TEXT, ordered INTEGER,
       ended INTEGER, outcome TEXT DEFAULT 'open', error TEXT, PRIMARY KEY (app, job, run))""",
    """CREATE TABLE IF NOT EXISTS decisions (n INTEGER PRIMARY KEY, at INTEGER, app INTEGER, what TEXT,
       gpus TEXT, until INTEGER, why TEXT)""",
    """CREATE TABLE IF NOT EXISTS inbox (id INTEGER PRIMARY KEY, at INTEGER, kind TEXT, body TEXT,
       answer TEXT)""",
)


class Rows:
    """Follows the books. *_held*: the row of each open lease, and whose it is."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._held: dict[int, tuple[int, int]] = {}  # by GPU: app, row
        self._machines: dict[int, int] = {}  # by GPU

    def read(self, state: ClusterState) -> None:
        found = self._db.execute("SELECT gpu, app, id FROM leases WHERE outcome = 'open'")
        self._held = {gpu: (app, row) for gpu, app, row in found}
        for machine, gpus in state.floor.gpus_of.items():
            self._machines.update(dict.fromkeys(gpus, machine))

    def write(self, step: Step, state: ClusterState, ended: Iterable[Ended]) -> None:
        self._joined(step, state)
        self._decisions(step)
        self._leases(step, state)
        self._finished(step)
        for app in self._touched(step, state):
            self._app(app, state.ledger.rows[app])
        self._begun(step, state)
        for key, seen in ended:
            self._db.execute(
                "UPDATE runs SET ended = ?, outcome = ?, error = ? WHERE app = ? AND job = ? AND run = ?",
                (step.now, seen.ended, seen.error, *key),
            )

    def _finished(self, step: Step) -> None:
        """Before a next phase takes their place in the books."""
        query = "UPDATE jobs SET outcome = 'finished', done = work WHERE app = ? AND job = ? AND run = ?"
        for event in step.events:
            if isinstance(event, JobFinished):
                self._db.execute(query, (event.app, event.job, event.run))

    def _joined(self, step: Step, state: ClusterState) -> None:
        for event in step.events:
            if isinstance(event, MachineJoined):
                gpus = state.floor.gpus_of.get(event.machine.id, ())
                self._machines.update(dict.fromkeys(gpus, event.machine.id))

    def _touched(self, step: Step, state: ClusterState) -> set[int]:
        found: set[int] = set()
        for each in (*step.events, *step.actions):
            if isinstance(each, MachineLost):
                found |= state.ledger.rows.keys()
            elif isinstance(each, AppArrived):
                found.add(each.app.id)
            elif hasattr(each, "app"):
                found.add(each.app)
        return found & state.ledger.rows.keys()

    def _app(self, app: int, row: AppRow) -> None:
        outcome = "open" if row.open else row.outcome.name.lower()
        values = (row.arrived, None if row.open else row.ended, outcome, row.reason or None, app)
        self._db.execute("UPDATE apps SET arrived=?, ended=?, outcome=?, reason=? WHERE id=?", values)
        finished = row.outcome is Outcome.FINISHED
        for job in row.jobs.values():
            self._job(app, row.phase - finished, job, _job_outcome(row, job))

    def _job(self, app: int, phase: int, row: JobRow, outcome: str) -> None:
        self._db.execute(
            "INSERT OR REPLACE INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?)",
            (app, row.job.id, phase, outcome, row.run, row.done, row.job.work),
        )

    def _begun(self, step: Step, state: ClusterState) -> None:
        for action in step.actions:
            row = state.ledger.rows[action.app].jobs.get(action.job) if isinstance(action, Run) else None
            if row is not None:
                self._db.execute(
                    "INSERT OR IGNORE INTO runs (app, job, run, gpus, ordered) VALUES (?, ?, ?, ?, ?)",
                    (action.app, action.job, row.run, _written(action.gpus), step.now),
                )

    def _decisions(self, step: Step) -> None:
        for action in step.actions:
            if isinstance(action, Grant | Revoke):
                until = action.until if isinstance(action, Grant) else None
                self._decided(step.now, action.app, type(action).__name__, action.gpus, until, action.why)
        for event in step.events:
            if isinstance(event, MachineLost):
                self._lost(step.now, event.machine)

    def _lost(self, now: Time, machine: int) -> None:
        gone: dict[int, list[int]] = {}
        for gpu, (app, _) in self._held.items():
            if self._machines.get(gpu) == machine:
                gone.setdefault(app, []).append(gpu)
        for app, gpus in gone.items():
            self._decided(now, app, "Lost", gpus, None, f"machine {machine} died")

    def _decided(
        self, at: Time, app: int, what: str, gpus: Sequence[int], until: Time | None, why: str
    ) -> None:
        self._db.execute(
            "INSERT INTO decisions (at, app, what, gpus, until, why) VALUES (?, ?, ?, ?, ?, ?)",
            (at, app, what.lower(), _written(gpus), until, why),
        )

    def _leases(self, step: Step, state: ClusterState) -> None:
        for gpu, (app, row) in list(self._held.items()):
            if state.holder.get(gpu) != app:
                how = self._how(step, state, gpu, app)
                self._db.execute("UPDATE leases SET ended=?, outcome=? WHERE id=?", (step.now, how, row))
                del self._held[gpu]
        for action in step.actions:
            if isinstance(action, Grant):
                self._granted(step.now, action, state)

    def _how(self, step: Step, state: ClusterState, gpu: int, app: int) -> str:
        if gpu not in state.free and gpu not in state.holder:
            return "lost"
        revoked = any(isinstance(a, Revoke) and a.app == app and gpu in a.gpus for a in step.actions)
        return "returned" if app not in state.apps else "revoked" if revoked else "expired"

    def _granted(self, now: Time, action: Grant, state: ClusterState) -> None:
        for gpu in action.gpus:
            if state.holder.get(gpu) != action.app:
                continue  # granted and taken back in one step
            known = self._held.get(gpu)
            if known is not None:
                query = "UPDATE leases SET until=?, renewed = renewed + 1 WHERE id=?"
                self._db.execute(query, (action.until, known[1]))
                continue
            done = self._db.execute(
                "INSERT INTO leases (app, gpu, machine, since, until) VALUES (?, ?, ?, ?, ?)",
                (action.app, gpu, self._machines.get(gpu), now, action.until),
            )
            self._held[gpu] = action.app, int(done.lastrowid or 0)


def _job_outcome(row: AppRow, job: JobRow) -> str:
    if job.finished:
        return "finished"
    if not row.open:
        return "abandoned"
    return "running" if job.gpus else "waiting"


def _written(gpus: Sequence[int]) -> str:
    return msgspec.json.encode(sorted(gpus)).decode()
