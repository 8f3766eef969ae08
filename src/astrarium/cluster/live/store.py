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
from typing import Any

import msgspec

from astrarium.cluster import contract
from astrarium.cluster.live.backend import JobCommand
from astrarium.cluster.live.inbox import Inbox, answering
from astrarium.cluster.live.machine.keeping.records import passes, private_folder
from astrarium.cluster.live.memory import EndedRun, Memory
from astrarium.cluster.live.policy import pickled_policy, unpickled_policy
from astrarium.cluster.live.tables import LATER_COLUMNS, SCHEMA, Rows, written_gpus
from astrarium.cluster.live.watching.events import Chronicler, ClusterEvent
from astrarium.cluster.state import ClusterState
from astrarium.core.errors import AstrariumError, InputError
from astrarium.core.quantities import Time
from astrarium.core.trace import Step

FILE = "cluster.db"
FORM = "2"  # of the tables, and of the folders of jobs
PAGE = 4096  # bytes: SQLite writes whole ones
_WAITS = {
    sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL,
}  # fmt: skip

_events = msgspec.json.Decoder(tuple[contract.Event, ...])
_actions = msgspec.json.Decoder(tuple[contract.Action, ...])


def waits(error: BaseException) -> bool:
    """Return whether it may work later, as it was: for want of room, of memory, or of a disk in order."""
    return passes(error) or getattr(error, "sqlite_errorcode", 0) & 0xFF in _WAITS


class Superseded(AstrariumError):
    """Another arbiter has taken over this store."""


class Store:
    """The file of a live cluster. *policy*, if given, is kept with every step, with all that it remembers."""

    def __init__(self, home: Path, state: ClusterState | None = None, policy: object = None) -> None:
        _make(private_folder(home) / FILE)
        self._db = open_database(home / FILE)
        self._state = state
        self._policy = policy
        self._epoch = 0
        self.inbox = Inbox(self._db, self._writing)
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
            expected = "a folder that this version of the arbiter has begun: name another with --state"
            raise InputError("live.state", str(home), expected)

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
        events, actions = (msgspec.json.encode(part).decode() for part in (step.events, step.actions))
        remembered = msgspec.msgpack.encode(memory), pickled_policy(self._policy, self._state)
        self.needs = 2 * PAGE * len(SCHEMA) + sum(len(part or "") for part in (events, actions, *remembered))
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
        content = self.get("memory")
        return Memory() if content is None else msgspec.msgpack.decode(content, type=Memory)

    def policy(self, state: ClusterState) -> Any:
        """Return the policy as it was after the last step, beside the same books, if it could be kept."""
        return unpickled_policy(self.get("policy"), state)

    def tell(self, *events: ClusterEvent) -> None:
        """Write events that belong to no step."""
        with self._writing():
            self._check_epoch()
            self._tell(events)

    def tell_later(self, event: ClusterEvent) -> None:
        """Write an event with the next step, or at once where there is none."""
        self._staged.append(self._insertion(event))

    def newest_event(self) -> int:
        """Return the number of the newest event; 0 where there is none."""
        return int(self._db.execute("SELECT max(id) FROM events").fetchone()[0] or 0)

    def last_of(self, kind: str) -> str | None:
        """Return the kind of the last event whose kind begins so."""
        query = "SELECT kind FROM events WHERE kind GLOB ? ORDER BY id DESC LIMIT 1"
        row = self._db.execute(query, (f"{kind}*",)).fetchone()
        return None if row is None else str(row[0])

    def _tell(self, events: Iterable[ClusterEvent]) -> None:
        for event in events:
            self._db.execute(*self._insertion(event))

    def _insertion(self, event: ClusterEvent) -> tuple[str, tuple[Any, ...]]:
        query = """INSERT INTO events (at, wall, kind, name, team, app, gpus, reason, cause)
                   VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"""
        who = event.at, event.at + self._ahead, event.kind, event.name, event.team, event.app
        return query, (*who, written_gpus(event.gpus), event.reason, event.cause)

    def add_app(self, app: int, name: str, task: JobCommand, submitted: Time, team: str = "") -> None:
        """Write an app with the next step, in which it arrives."""
        query = "INSERT INTO apps (id, name, task, submitted, owner, team) VALUES (?, ?, ?, ?, ?, ?)"
        written = msgspec.json.encode(task).decode()
        self._staged.append((query, (app, name, written, submitted, task.owner, team)))

    def answer_later(self, message: int, answer: str) -> None:
        """Answer a message with the next step, which does what it asks for, or at once where none does."""
        self._staged.append(answering(message, answer))

    def tasks(self) -> dict[int, JobCommand]:
        rows = self._db.execute("SELECT id, task FROM apps")
        return {app: msgspec.json.decode(task, type=JobCommand) for app, task in rows}

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


def rows(db: sqlite3.Connection, query: str, *values: Any) -> list[dict[str, Any]]:
    cursor = db.execute(query, values)
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor]


def _make(path: Path) -> None:
    """Make the file, for our user alone, unless it is there. One that is there is not opened: closing it
    would take SQLite's locks away from all connections of this process, and the next reader its log."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def open_database(path: Path, read_only: bool = False) -> sqlite3.Connection:
    address = f"{path.resolve().as_uri()}{'?mode=ro' if read_only else ''}"
    db = sqlite3.connect(address, uri=True, timeout=30, isolation_level=None)
    if not read_only:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
    return db
