"""The store keeps what a live cluster must not forget, in one SQLite file.

Every step is written in one transaction before any order is given: what was heard, what was decided, and the
rows that people read. The books are made again from the steps; the rows are for `status` and for questions in
SQL. Every app, job, lease and run has one row, and ends in exactly one state.

Each arbiter that opens the store has a number, its epoch. One whose number is no longer the newest writes
nothing any more.

A step that finds no room on the disk has been decided, and the books have it: it is kept, and written before
anything else happens.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from astrarium.cluster import contract
from astrarium.cluster.live.backend import EndedRun, JobCommand, Memory
from astrarium.cluster.live.limits import MOST_UNREAD, TURN
from astrarium.cluster.live.machine.keeping.records import passes, private_folder
from astrarium.cluster.live.policy import pickled_policy, unpickled_policy
from astrarium.cluster.live.watching.events import Chronicler, ClusterEvent
from astrarium.cluster.record import gpu_failed, machine_died
from astrarium.cluster.state import AppRow, ClusterState, JobRow, Outcome
from astrarium.core.errors import AstrariumError, InputError
from astrarium.core.trace import Step
from astrarium.core.units import SECOND, Time

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
        found = self._db.execute("SELECT gpu, app, id FROM leases WHERE outcome = 'open'")
        self._held = {gpu: (app, row) for gpu, app, row in found}
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
        found: set[int] = set()
        for each in (*step.events, *step.actions):
            if isinstance(each, contract.MachineLost | contract.GpuFailed):
                found |= state.ledger.rows.keys()
            elif isinstance(each, contract.AppArrived):
                found.add(each.app.id)
            elif hasattr(each, "app"):
                found.add(each.app)
        return found & state.ledger.rows.keys()

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
            told = (job.job.id, row.phase - finished, _job_outcome(row, job), job.run, job.done, job.job.work)
            self._db.execute("INSERT OR REPLACE INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?)", (app, *told))

    def _begun(self, step: Step, state: ClusterState) -> None:
        for action in step.actions:
            if isinstance(action, contract.Run) and (
                row := state.ledger.rows[action.app].jobs.get(action.job)
            ):
                self._db.execute(
                    "INSERT OR IGNORE INTO runs (app, job, run, gpus, ordered) VALUES (?, ?, ?, ?, ?)",
                    (action.app, action.job, row.run, _written(action.gpus), step.now),
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
            (at, app, what.lower(), _written(gpus), until, why),
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


def _written(gpus: Sequence[int]) -> str:
    return msgspec.json.encode(sorted(gpus)).decode()


FILE = "cluster.db"
FORM = "2"  # of the tables, and of the folders of jobs
PAGE = 4096  # bytes: SQLite writes whole ones
_WAITS = {
    sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL,
}  # fmt: skip
ANSWER = "UPDATE inbox SET answer = ?, body = '' WHERE id = ?"
KEPT = 3600 * SECOND  # for which an answer can be read: nobody waits for one as long as that

_events = msgspec.json.Decoder(tuple[contract.Event, ...])
_actions = msgspec.json.Decoder(tuple[contract.Action, ...])


def waits(error: BaseException) -> bool:
    """Return whether it may work later, as it was: for want of room, of memory, or of a disk in order."""
    return passes(error) or getattr(error, "sqlite_errorcode", 0) & 0xFF in _WAITS


class Superseded(AstrariumError):
    """Another arbiter has taken over this store."""


class InboxMessage(NamedTuple):
    """A message from somebody who submits or withdraws an app: it is read once, and answered."""

    id: int
    kind: str
    body: dict[str, Any]
    owner: str = ""
    fault: str = ""  # why its body cannot be read


class Store:
    """The file of a live cluster. *policy*, if given, is kept with every step, with all that it remembers."""

    def __init__(self, home: Path, state: ClusterState | None = None, policy: object = None) -> None:
        _make(private_folder(home) / FILE)
        self._db = connected(home / FILE)
        self._state = state
        self._policy = policy
        self._epoch = 0
        self._rows = Rows(self._db)
        self._chronicler = Chronicler()
        self._ahead = 0
        self._staged: list[tuple[str, tuple[Any, ...]]] = []
        self._unwritten: tuple[Step, Memory, Sequence[EndedRun]] | None = None
        self.needs = 2 * PAGE * len(SCHEMA)  # bytes, about: some pages of every table, and what goes there
        with self._writing():
            for table in SCHEMA:
                self._db.execute(table)
            for table, column in LATER_COLUMNS:
                known = {row[1] for row in self._db.execute(f"PRAGMA table_info({table})")}
                if column.split()[0] not in known:
                    self._db.execute(f"ALTER TABLE {table} ADD COLUMN {column}")
            self._db.execute("INSERT OR IGNORE INTO meta VALUES ('form', ?)", (FORM,))
        if self.get("form") != FORM:
            told = "a folder that this version of the arbiter has begun: name another with --state"
            raise InputError("live.state", str(home), told)

    def begin(self, origin: Time, state: ClusterState, policy: object) -> int:
        """Begin as a new arbiter and return its epoch; *origin* is the wall clock at instant 0."""
        self._state = state
        self._policy = policy
        with self._writing():
            self._db.execute("INSERT OR IGNORE INTO meta VALUES ('origin', ?)", (origin,))
            self._db.execute("INSERT OR IGNORE INTO meta VALUES ('epoch', 0)")
            self._db.execute("UPDATE meta SET value = value + 1 WHERE key = 'epoch'")
            self._epoch = int(self.get("epoch"))
            teams = [(row.app.team, app) for app, row in state.ledger.rows.items()]
            self._db.executemany("UPDATE apps SET team = ? WHERE id = ? AND team IS NULL", teams)
        self._rows.read(state)
        self._chronicler.read(state, self.memory().machines)
        return self._epoch

    def set_clock(self, at: Time, wall: Time) -> None:
        """Write what the clock on the wall shows at an instant, from which on it is believed."""
        self._ahead = wall - at
        with self._writing():
            self._check_epoch()
            self._db.execute("INSERT INTO clock VALUES (?, ?, ?)", (at, wall, self._epoch))

    def drift(self, at: Time, wall: Time) -> Time:
        """Return how far the clock on the wall is from what it was believed to show."""
        return wall - at - self._ahead

    # the journal

    def write(self, step: Step, memory: Memory, ended: Sequence[EndedRun]) -> None:
        self._unwritten = step, memory, ended
        self.catch_up()

    @property
    def behind(self) -> bool:
        """Return whether something was decided, or answered, and is not written yet."""
        return self._unwritten is not None or bool(self._staged)

    def catch_up(self) -> bool:
        """Write what is not written yet, and return whether there was anything."""
        if not self.behind:
            return False
        with self._rows.restored(), self._writing():
            self._check_epoch()
            for query, values in self._staged:
                self._db.execute(query, values)
            if self._unwritten is not None:
                self._write(*self._unwritten)
        self._unwritten = None
        self._staged.clear()
        return True

    def _write(self, step: Step, memory: Memory, ended: Sequence[EndedRun]) -> None:
        assert self._state is not None
        events, actions = (msgspec.json.encode(each).decode() for each in (step.events, step.actions))
        remembered = msgspec.msgpack.encode(memory), pickled_policy(self._policy, self._state)
        self.needs = 2 * PAGE * len(SCHEMA) + sum(len(each or "") for each in (events, actions, *remembered))
        self._db.execute(
            "INSERT INTO steps (now, events, actions) VALUES (?, ?, ?)", (step.now, events, actions)
        )
        self._rows.write(step, self._state, ended)
        for key, began in memory.began.items():
            query = "UPDATE runs SET began = ? WHERE app = ? AND job = ? AND run = ? AND began IS NULL"
            self._db.execute(query, (began, *key))
        self._tell(self._chronicler.hear(step, self._state, memory.machines, ended))
        self._put("memory", remembered[0])
        self._put("policy", remembered[1])

    def steps(self) -> Iterator[Step]:
        for now, events, actions in self._db.execute("SELECT now, events, actions FROM steps ORDER BY n"):
            yield Step(now, _events.decode(events), _actions.decode(actions))

    def memory(self) -> Memory:
        found = self.get("memory")
        return Memory() if found is None else msgspec.msgpack.decode(found, type=Memory)

    def policy(self, state: ClusterState) -> Any:
        """Return the policy as it was after the last step, beside the same books, if it could be kept."""
        return unpickled_policy(self.get("policy"), state)

    # events

    def tell(self, *events: ClusterEvent) -> None:
        """Write events that belong to no step."""
        with self._writing():
            self._check_epoch()
            self._tell(events)

    def tell_later(self, event: ClusterEvent) -> None:
        """Write an event with the next step, or at once where there is none."""
        self._staged.append(self._told(event))

    def newest_event(self) -> int:
        """Return the number of the newest event; 0 where there is none."""
        return int(self._db.execute("SELECT max(id) FROM events").fetchone()[0] or 0)

    def last_of(self, kind: str) -> str | None:
        """Return the kind of the last event whose kind begins so."""
        query = "SELECT kind FROM events WHERE kind GLOB ? ORDER BY id DESC LIMIT 1"
        row = self._db.execute(query, (f"{kind}*",)).fetchone()
        return None if row is None else str(row[0])

    def _tell(self, events: Iterable[ClusterEvent]) -> None:
        for each in events:
            self._db.execute(*self._told(each))

    def _told(self, each: ClusterEvent) -> tuple[str, tuple[Any, ...]]:
        query = """INSERT INTO events (at, wall, kind, name, team, app, gpus, reason, cause)
                   VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"""
        who = each.at, each.at + self._ahead, each.kind, each.name, each.team, each.app
        return query, (*who, _written(each.gpus), each.reason, each.cause)

    # apps

    def add_app(self, app: int, name: str, task: JobCommand, submitted: Time, team: str = "") -> None:
        """Write an app with the next step, in which it arrives."""
        query = "INSERT INTO apps (id, name, task, submitted, owner, team) VALUES (?, ?, ?, ?, ?, ?)"
        told = msgspec.json.encode(task).decode()
        self._staged.append((query, (app, name, told, submitted, task.owner, team)))

    def answer_later(self, message: int, answer: str) -> None:
        """Answer a message with the next step, which does what it asks for, or at once where none does."""
        self._staged.append((ANSWER, (answer, message)))

    def tasks(self) -> dict[int, JobCommand]:
        rows = self._db.execute("SELECT id, task FROM apps")
        return {app: msgspec.json.decode(task, type=JobCommand) for app, task in rows}

    # messages

    def send(self, kind: str, body: dict[str, Any], at: Time, owner: str = "") -> int:
        """Leave a message and return its number; those of an owner that wait for an answer are limited. Old
        ones, which nobody waits for any more, are removed."""
        with self._writing():
            self._check_unread(owner)
            self._db.execute("DELETE FROM inbox WHERE answer IS NOT NULL AND at < ?", (at - KEPT,))
            values = at, kind, msgspec.json.encode(body).decode(), owner
            query = "INSERT INTO inbox (at, kind, body, owner) VALUES (?, ?, ?, ?)"
            done = self._db.execute(query, values)
        assert done.lastrowid is not None
        return done.lastrowid

    def _check_unread(self, owner: str) -> None:
        query = "SELECT count(*) FROM inbox WHERE answer IS NULL AND owner = ?"
        [unread] = self._db.execute(query, (owner,)).fetchone()
        if owner and unread >= MOST_UNREAD:
            told = f"at most {MOST_UNREAD} messages of a user that the arbiter has not answered: wait"
            raise InputError("user", owner, told)

    def inbox(self) -> list[InboxMessage]:
        """Return messages without an answer, in their order; of each owner so many as one turn takes."""
        rows = self._db.execute(
            """SELECT id, kind, body, who FROM (SELECT id, kind, body, coalesce(owner, '') AS who,
               row_number() OVER (PARTITION BY coalesce(owner, '') ORDER BY id) AS place
               FROM inbox WHERE answer IS NULL) WHERE place <= ? ORDER BY id""",
            (TURN,),
        ).fetchall()
        return [_read_message(*row) for row in rows]

    def answer(self, message: int) -> str | None:
        return answer_to(self._db, message)

    # the rest

    def get(self, key: str) -> Any:
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else row[0]

    def put(self, key: str, value: Any) -> None:
        with self._writing():
            self._check_epoch()
            self._put(key, value)

    def close(self) -> None:
        self._db.close()

    def _put(self, key: str, value: Any) -> None:
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def _check_epoch(self) -> None:
        if self.get("epoch") != self._epoch:
            raise Superseded(f"arbiter {self._epoch} was superseded by arbiter {self.get('epoch')}")

    @contextmanager
    def _writing(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException as error:
            if self._db.in_transaction:  # SQLite itself may have taken it back
                self._db.execute("ROLLBACK")
            if waits(error):  # the log of SQLite is long until it is copied into the file
                with suppress(sqlite3.Error):
                    self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            raise


def _read_message(number: int, kind: str, body: str, owner: str) -> InboxMessage:
    """Return a message as it was left; one that cannot be read is to be refused like any other."""
    try:
        return InboxMessage(number, kind, msgspec.json.decode(body, type=dict[str, Any]), owner)
    except (msgspec.MsgspecError, RecursionError) as error:
        return InboxMessage(number, kind, {}, owner, str(error))


def answer_to(db: sqlite3.Connection, message: int) -> str | None:
    """Return what the arbiter has answered to a message; None: nothing yet."""
    row = db.execute("SELECT answer FROM inbox WHERE id = ?", (message,)).fetchone()
    return None if row is None else row[0]


def rows(db: sqlite3.Connection, query: str, *values: Any) -> list[dict[str, Any]]:
    found = db.execute(query, values)
    names = [column[0] for column in found.description]
    return [dict(zip(names, row, strict=True)) for row in found]


def _make(path: Path) -> None:
    """Make the file, for our user alone, unless it is there. One that is there is not opened: closing it
    would take SQLite's locks away from all connections of this process, and the next reader its log."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def connected(path: Path, read_only: bool = False) -> sqlite3.Connection:
    address = f"{path.resolve().as_uri()}{'?mode=ro' if read_only else ''}"
    db = sqlite3.connect(address, uri=True, timeout=30, isolation_level=None)
    if not read_only:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
    return db
