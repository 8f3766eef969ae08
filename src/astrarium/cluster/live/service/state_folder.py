"""The state folder of a cluster answers what people ask: its database is read, and messages are left in it.

Who may write the folder needs no arbiter for that; an arbiter answers others from the same folder.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from astrarium.cluster.live.access import Past
from astrarium.cluster.live.backends.hosts.copies import COPIES
from astrarium.cluster.live.backends.hosts.messages import LogPiece
from astrarium.cluster.live.inbox import answer_to
from astrarium.cluster.live.machine.as_owner import LONGEST_LOG, log_names, read_logs
from astrarium.cluster.live.machine.folders import app_name
from astrarium.cluster.live.machine.keeping.errands import log_pieces
from astrarium.cluster.live.store import FILE, Store, open_database, rows
from astrarium.cluster.live.watching.history import PastQuery, past
from astrarium.core.errors import InputError, did_you_mean

POLL = 0.05  # seconds


class LogsHead(NamedTuple):
    """Whether an app has ended, so that all that it wrote is there, and whether it has several logs."""

    ended: bool
    several: bool


class Source(Protocol):
    """A cluster, wherever one talks to it."""

    def status(self) -> dict[str, Any]: ...
    def story(self, app: str) -> dict[str, Any]: ...
    def past(self, kind: Past, query: PastQuery) -> list[Any]: ...
    def send(self, kind: str, body: dict[str, Any], wait: float) -> str | None: ...
    def logs(self, app: str, have: Mapping[str, int]) -> tuple[LogsHead, Iterator[LogPiece]]:
        """Return what its logs have beyond the bytes that one has."""


class StateFolder:
    """A cluster by its state folder; *owner*: in whose name messages are left there. Their answers are not
    waited for any longer when the owner has *gone*."""

    def __init__(self, home: Path, owner: str = "", gone: Callable[[], bool] = lambda: False) -> None:
        self._home = home
        self._owner = owner
        self._gone = gone

    def status(self) -> dict[str, Any]:
        with self._reading() as db:
            meta = dict(db.execute("SELECT key, value FROM meta WHERE key IN ('status', 'hooks')").fetchall())
            waiting = db.execute("SELECT count(*) FROM inbox WHERE answer IS NULL").fetchone()[0]
        if "status" not in meta:
            raise InputError("--state", str(self._home), "a cluster that has begun")
        hooks = list(msgspec.json.decode(meta.get("hooks") or "{}").values())
        return {"status": msgspec.json.decode(meta["status"]), "unread": waiting, "hooks": hooks}

    def story(self, app: str) -> dict[str, Any]:
        """Return every decision about an app with its reason, and its runs."""
        of = "WHERE app = (SELECT id FROM apps WHERE name = ?)"
        decisions = f"SELECT at, what, gpus, until, why FROM decisions {of} ORDER BY n"
        runs = f"SELECT job, run, gpus, ordered, ended, outcome, error FROM runs {of} ORDER BY ordered"
        with self._reading() as db:
            return {"decisions": rows(db, decisions, app), "runs": rows(db, runs, app)}

    def past(self, kind: Past, query: PastQuery) -> list[Any]:
        with self._reading() as db:
            return past(db, kind, query)

    def send(self, kind: str, body: dict[str, Any], wait: float) -> str | None:
        """Leave a message for the arbiter, and return its answer; None: it has not answered in time."""
        return self.answer(self.leave(kind, body), wait)

    def leave(self, kind: str, body: dict[str, Any]) -> int:
        """Leave a message for the arbiter, and return its number."""
        with closing(Store(self._home)) as store:
            return store.inbox.send(kind, body, time.time_ns(), self._owner)

    def answer(self, message: int, wait: float) -> str | None:
        """Return the answer to a message; None: there is none in time."""
        ends = time.monotonic() + wait
        with self._reading() as db:
            while (reply := answer_to(db, message)) is None and time.monotonic() < ends and not self._gone():
                time.sleep(POLL)
        return reply

    def logs(self, app: str, have: Mapping[str, int]) -> tuple[LogsHead, Iterator[LogPiece]]:
        name, jobs, ended = self.app_folder(app)
        brought = jobs / COPIES / name  # from machines with folders of their own
        here = brought.glob("job-*/run-*/part-*/log-*.txt")
        paths = [path.relative_to(brought).as_posix() for path in here] or log_names(jobs, name)
        logs = {path: have.get(path, 0) for path in sorted(paths, key=_numbers)}
        pieces = log_pieces(brought, logs, LONGEST_LOG) if brought.exists() else read_logs(jobs, name, logs)
        return LogsHead(ended, len(paths) > 1), (LogPiece(*piece) for piece in pieces)

    def app_folder(self, app: str) -> tuple[str, Path, bool]:
        """Return the name of an app's folders, where they are, and whether it has ended."""
        with self._reading() as db:
            named = db.execute("SELECT name, id, ended IS NOT NULL FROM apps ORDER BY id")
            apps = {name: (number, bool(ended)) for name, number, ended in named}
            jobs = db.execute("SELECT value FROM meta WHERE key = 'jobs'").fetchone()
        check_app("APP", app, list(apps))
        number, ended = apps[app]
        return app_name(number, app), Path(jobs[0]) if jobs and jobs[0] else self._home, ended

    def teams(self) -> dict[str, str]:
        """Return the team of every app."""
        with self._reading() as db:
            return dict(db.execute("SELECT name, coalesce(team, '') FROM apps ORDER BY id").fetchall())

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """Who asks need not be allowed to write."""
        with closing(open_database(self._home / FILE, read_only=True)) as db:
            yield db


def check_app(field: str, name: str, names: list[str]) -> None:
    if name not in names:
        latest = ", ".join(names[-20:]) or "there is none yet"
        raise InputError(field, name, f"an app of this cluster, such as {latest}{did_you_mean(names, name)}")


def _numbers(path: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", path)]
