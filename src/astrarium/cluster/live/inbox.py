"""The inbox of a live cluster: users leave messages in its store, and its arbiter reads and answers them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import msgspec

from astrarium.cluster.live.limits import MOST_UNREAD, TURN
from astrarium.core.errors import InputError
from astrarium.core.quantities import SECOND, Time

KEPT = 3600 * SECOND  # for which an answer can be read: nobody waits for one as long as that


class InboxMessage(NamedTuple):
    """A message from somebody who submits or withdraws an app: it is read once, and answered."""

    id: int
    kind: str
    body: dict[str, Any]
    owner: str = ""
    fault: str = ""  # why its body cannot be read


class Inbox:
    """The messages in a store. Many processes leave some; each by *writing* in a transaction of its own."""

    def __init__(self, db: sqlite3.Connection, writing: Callable[[], AbstractContextManager[None]]) -> None:
        self._db = db
        self._writing = writing

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
            expected = f"at most {MOST_UNREAD} messages of a user that the arbiter has not answered: wait"
            raise InputError("user", owner, expected)

    def unread(self) -> list[InboxMessage]:
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


def answering(message: int, answer: str) -> tuple[str, tuple[Any, ...]]:
    """Return the query that answers a message, whose body nobody needs any more, and its values."""
    return "UPDATE inbox SET answer = ?, body = '' WHERE id = ?", (answer, message)


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
