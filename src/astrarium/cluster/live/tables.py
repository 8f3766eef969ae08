"""The tables of the store, and the rows in them that people read, which follow the books step by step."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import msgspec

from astrarium.cluster import contract
from astrarium.cluster.live.memory import EndedRun
from astrarium.cluster.record import gpu_failed, machine_died
from astrarium.cluster.state import AppRow, ClusterState, JobRow, Outcome
from astrarium.core.quantities import Time
from astrarium.core.trace import Step

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
    "CREATE TABLE IF NOT EXISTS clock (at INTEGER, wall INTEGER, epoch INTEGER)",
    """CREATE TABLE IF NOT EXISTS events (id INTEGER PRIMARY KEY, at INTEGER, wall INTEGER, kind TEXT,
       name TEXT, team TEXT, app INTEGER, gpus TEXT, reason TEXT, cause TEXT)""",
    "CREATE INDEX IF NOT EXISTS events_by_kind ON events (kind)",
    "CREATE INDEX IF NOT EXISTS inbox_unread ON inbox (id) WHERE answer IS NULL",
    "CREATE INDEX IF NOT EXISTS inbox_answered ON inbox (at) WHERE answer IS NOT NULL",
)
LATER_COLUMNS = (  # of folders that an earlier version has begun
    ("apps", "team TEXT"),
    ("apps", "owner TEXT"),
    ("runs", "began INTEGER"),
    ("inbox", "owner TEXT"),
)


class Rows:
    """The rows that people read, which follow the books. *_held*: the row of each open lease, and its app."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._held: dict[int, tuple[int, int]] = {}  # by GPU: app, row
        self._machines: dict[int, int] = {}  # by GPU

    def read(self, state: ClusterState) -> None:
        leases = self._db.execute("SELECT gpu, app, id FROM leases WHERE outcome = 'open'")
        self._held = {gpu: (app, row) for gpu, app, row in leases}
        for machine in state.floor.machines.values():
            self._machines.update(dict.fromkeys(state.floor.all_of(machine), machine.id))

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Forget what was noted in the block if it fails: then none of it has been written."""
        before = dict(self._held)
        try:
            yield
        except BaseException:
            self._held = before
            raise

    def write(self, step: Step, state: ClusterState, ended: Iterable[EndedRun]) -> None:
        self._joined(step, state)
        self._decisions(step)
        self._leases(step, state)
        self._finished(step)
        for app in self._touched(step, state):
            self._app(app, state.ledger.rows[app])
        self._begun(step, state)
        for key, status in ended:
            self._db.execute(
                "UPDATE runs SET ended = ?, outcome = ?, error = ? WHERE app = ? AND job = ? AND run = ?",
                (step.now, status.ended, status.error, *key),
            )

    def _finished(self, step: Step) -> None:
        """Write jobs that have finished, before a next phase takes their place in the books."""
        query = "UPDATE jobs SET outcome = 'finished', done = work WHERE app = ? AND job = ? AND run = ?"
        for event in step.events:
            if isinstance(event, contract.JobFinished):
                self._db.execute(query, (event.app, event.job, event.run))

    def _joined(self, step: Step, state: ClusterState) -> None:
        for event in step.events:
            if isinstance(event, contract.MachineJoined):
                gpus = state.floor.all_of(event.machine)
                self._machines.update(dict.fromkeys(gpus, event.machine.id))

    def _touched(self, step: Step, state: ClusterState) -> set[int]:
        apps: set[int] = set()
        for change in (*step.events, *step.actions):
            if isinstance(change, contract.MachineLost | contract.GpuFailed):
                apps |= state.ledger.rows.keys()
            elif isinstance(change, contract.AppArrived):
                apps.add(change.app.id)
            elif isinstance(change, contract.AppEvent | contract.AppAction):
                apps.add(change.app)
        return apps & state.ledger.rows.keys()

    def _app(self, app: int, row: AppRow) -> None:
        outcome = "open" if row.open else row.outcome.name.lower()
        values = (
            row.arrived,
            None if row.open else row.ended,
            outcome,
            row.reason or None,
            row.app.team,
            app,
        )
        self._db.execute("UPDATE apps SET arrived=?, ended=?, outcome=?, reason=?, team=? WHERE id=?", values)
        finished = row.outcome is Outcome.FINISHED
        for job in row.jobs.values():
            values_of_job = (
                job.job.id,
                row.phase - finished,
                _job_outcome(row, job),
                job.run,
                job.done,
                job.job.work,
            )
            self._db.execute(
                "INSERT OR REPLACE INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?)", (app, *values_of_job)
            )

    def _begun(self, step: Step, state: ClusterState) -> None:
        for action in step.actions:
            if isinstance(action, contract.Run) and (
                row := state.ledger.rows[action.app].jobs.get(action.job)
            ):
                self._db.execute(
                    "INSERT OR IGNORE INTO runs (app, job, run, gpus, ordered) VALUES (?, ?, ?, ?, ?)",
                    (action.app, action.job, row.run, written_gpus(action.gpus), step.now),
                )

    def _decisions(self, step: Step) -> None:
        for action in step.actions:
            if isinstance(action, contract.Grant | contract.Revoke):
                until = action.until if isinstance(action, contract.Grant) else None
                self._decided(step.now, action.app, type(action).__name__, action.gpus, until, action.why)
        for event in step.events:
            if isinstance(event, contract.MachineLost):
                gone = [gpu for gpu in self._held if self._machines.get(gpu) == event.machine]
                self._lost(step.now, gone, machine_died(event))
            elif isinstance(event, contract.GpuFailed):
                self._lost(step.now, [event.gpu], gpu_failed(event))

    def _lost(self, now: Time, gone: Sequence[int], why: str) -> None:
        by_app: dict[int, list[int]] = {}
        for gpu in gone:
            if gpu in self._held:
                by_app.setdefault(self._held[gpu][0], []).append(gpu)
        for app, gpus in by_app.items():
            self._decided(now, app, "Lost", gpus, None, why)

    def _decided(
        self, at: Time, app: int, what: str, gpus: Sequence[int], until: Time | None, why: str
    ) -> None:
        self._db.execute(
            "INSERT INTO decisions (at, app, what, gpus, until, why) VALUES (?, ?, ?, ?, ?, ?)",
            (at, app, what.lower(), written_gpus(gpus), until, why),
        )

    def _leases(self, step: Step, state: ClusterState) -> None:
        for gpu, (app, row) in list(self._held.items()):
            if state.holder.get(gpu) != app:
                how = self._how(step, state, gpu, app)
                self._db.execute("UPDATE leases SET ended=?, outcome=? WHERE id=?", (step.now, how, row))
                del self._held[gpu]
        for action in step.actions:
            if isinstance(action, contract.Grant):
                self._granted(step.now, action, state)

    def _how(self, step: Step, state: ClusterState, gpu: int, app: int) -> str:
        if gpu not in state.free and gpu not in state.holder:
            return "lost"
        revoked = any(isinstance(a, contract.Revoke) and a.app == app and gpu in a.gpus for a in step.actions)
        return "returned" if app not in state.apps else "revoked" if revoked else "expired"

    def _granted(self, now: Time, action: contract.Grant, state: ClusterState) -> None:
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


def written_gpus(gpus: Sequence[int]) -> str:
    return msgspec.json.encode(sorted(gpus)).decode()
