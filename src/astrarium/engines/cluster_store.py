"""What a live cluster must not forget, in one SQLite file.

Every step is written in one transaction before any order is given: what was heard, what was decided, and the
rows that people read. The books are made again from the steps; the rows are for `status` and for questions in
SQL. Every app, job, lease and run has one row, and ends in exactly one state.

Each arbiter that opens the store has a number, its epoch. One whose number is no longer the newest writes
nothing any more.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from astrarium.cluster.actions import Action
from astrarium.cluster.events import Event
from astrarium.cluster.live_memory import Ended, Memory
from astrarium.cluster.seen import Task
from astrarium.cluster.state import ClusterState
from astrarium.core.errors import AstrariumError, InputError
from astrarium.core.trace import Step
from astrarium.core.units import Time
from astrarium.engines.cluster_frozen import frozen, thawed
from astrarium.engines.cluster_rows import SCHEMA, Rows

FILE = "cluster.db"
FORM = "1"  # of the tables
ANSWER = "UPDATE inbox SET answer = ? WHERE id = ?"

_events = msgspec.json.Decoder(tuple[Event, ...])
_actions = msgspec.json.Decoder(tuple[Action, ...])


class Superseded(AstrariumError):
    """Another arbiter has taken over."""


class Letter(NamedTuple):
    """From somebody who submits or withdraws: read once, and answered."""

    id: int
    kind: str
    body: dict[str, Any]


class Store:
    """*policy*, if given, is kept with every step, with all that it remembers."""

    def __init__(self, home: Path, state: ClusterState | None = None, policy: object = None) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self._db = connected(home / FILE)
        self._state, self._policy, self._epoch = state, policy, 0
        self._rows = Rows(self._db)
        self._staged: list[tuple[str, tuple[Any, ...]]] = []
        with self._writing():
            for table in SCHEMA:
                self._db.execute(table)
            self._db.execute("INSERT OR IGNORE INTO meta VALUES ('form', ?)", (FORM,))
        if self.get("form") != FORM:
            raise InputError("", str(home), "a folder that this version of the arbiter has written")

    def begin(self, origin: Time, state: ClusterState, policy: object) -> int:
        """A new arbiter; its epoch. *origin*: what the wall clock shows at instant 0, if it is the first."""
        self._state, self._policy = state, policy
        with self._writing():
            self._db.execute("INSERT OR IGNORE INTO meta VALUES ('origin', ?)", (origin,))
            self._db.execute("INSERT OR IGNORE INTO meta VALUES ('epoch', 0)")
            self._db.execute("UPDATE meta SET value = value + 1 WHERE key = 'epoch'")
            self._epoch = int(self.get("epoch"))
        self._rows.read(state)
        return self._epoch

    # the journal

    def write(self, step: Step, memory: Memory, ended: Sequence[Ended]) -> None:
        assert self._state is not None
        with self._writing():
            self._check_epoch()
            encode = msgspec.json.encode
            self._db.execute(
                "INSERT INTO steps (now, events, actions) VALUES (?, ?, ?)",
                (step.now, encode(step.events).decode(), encode(step.actions).decode()),
            )
            for query, values in self._staged:
                self._db.execute(query, values)
            self._rows.write(step, self._state, ended)
            self._put("memory", msgspec.msgpack.encode(memory))
            self._put("policy", frozen(self._policy, self._state))
        self._staged.clear()

    def steps(self) -> Iterator[Step]:
        for now, events, actions in self._db.execute("SELECT now, events, actions FROM steps ORDER BY n"):
            yield Step(now, _events.decode(events), _actions.decode(actions))

    def memory(self) -> Memory:
        found = self.get("memory")
        return Memory() if found is None else msgspec.msgpack.decode(found, type=Memory)

    def policy(self, state: ClusterState) -> Any:
        """As it was after the last step, beside books as they were then; None where it could not be kept."""
        return thawed(self.get("policy"), state)

    # apps

    def add_app(self, app: int, name: str, task: Task, submitted: Time) -> None:
        """With the next step, in which it arrives."""
        query = "INSERT INTO apps (id, name, task, submitted) VALUES (?, ?, ?, ?)"
        self._staged.append((query, (app, name, msgspec.json.encode(task).decode(), submitted)))

    def answer_later(self, letter: int, answer: str) -> None:
        """With the next step, which does what the letter asks for."""
        self._staged.append((ANSWER, (answer, letter)))

    def tasks(self) -> dict[int, Task]:
        rows = self._db.execute("SELECT id, task FROM apps")
        return {app: msgspec.json.decode(task, type=Task) for app, task in rows}

    # letters

    def send(self, kind: str, body: dict[str, Any], at: Time) -> int:
        with self._writing():
            values = at, kind, msgspec.json.encode(body).decode()
            done = self._db.execute("INSERT INTO inbox (at, kind, body) VALUES (?, ?, ?)", values)
        assert done.lastrowid is not None
        return done.lastrowid

    def letters(self) -> list[Letter]:
        rows = self._db.execute(
            "SELECT id, kind, body FROM inbox WHERE answer IS NULL ORDER BY id"
        ).fetchall()
        return [Letter(number, kind, msgspec.json.decode(body)) for number, kind, body in rows]

    def reply(self, letter: int, answer: str) -> None:
        with self._writing():
            self._check_epoch()
            self._db.execute(ANSWER, (answer, letter))

    def answer(self, letter: int) -> str | None:
        row = self._db.execute("SELECT answer FROM inbox WHERE id = ?", (letter,)).fetchone()
        return None if row is None else row[0]

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
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")


def rows(db: sqlite3.Connection, query: str, *values: Any) -> list[dict[str, Any]]:
    found = db.execute(query, values)
    names = [column[0] for column in found.description]
    return [dict(zip(names, row, strict=True)) for row in found]


def connected(path: Path, read_only: bool = False) -> sqlite3.Connection:
    address = f"{path.resolve().as_uri()}{'?mode=ro' if read_only else ''}"
    db = sqlite3.connect(address, uri=True, timeout=30, isolation_level=None)
    if not read_only:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
    return db
