"""The arbiter answers those who submit, withdraw and look: over a socket in its state folder, or a network.

Messages are left in the store, as by somebody who may write the folder; here it is known whom they are from,
and whether that user may do it.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
import socket
import sqlite3
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from astrarium.cluster.live.access import AccessSection, Identity, Past, allowed, chosen_team, teams_of
from astrarium.cluster.live.backends.copies import COPIES
from astrarium.cluster.live.backends.remote import AGENT, LogPiece
from astrarium.cluster.live.backends.wire import Channel, Listener, WireError, checked_key, private_text
from astrarium.cluster.live.machine.as_owner import LONGEST_LOG, log_names, read_logs
from astrarium.cluster.live.machine.folders import app_name
from astrarium.cluster.live.machine.keeping.errands import log_pieces
from astrarium.cluster.live.store import FILE, Store, connected, rows
from astrarium.cluster.live.watching.history import PastQuery, past
from astrarium.core.decode import Decoder
from astrarium.core.errors import AstrariumError, InputError, did_you_mean

SOCKET = "arbiter.sock"
LONGEST_WAIT = 600.0  # seconds that an answer of the arbiter is waited for
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
    """A cluster by its state folder; *owner*: in whose name messages are left there."""

    def __init__(self, home: Path, owner: str = "") -> None:
        self._home, self._owner = home, owner

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
        store = Store(self._home)
        try:
            letter, ends = store.send(kind, body, time.time_ns(), self._owner), time.monotonic() + wait
            answer = store.answer(letter)
            while answer is None and time.monotonic() < ends:
                time.sleep(POLL)
                answer = store.answer(letter)
        finally:
            store.close()
        return answer

    def logs(self, app: str, have: Mapping[str, int]) -> tuple[LogsHead, Iterator[LogPiece]]:
        name, jobs, ended = self.app_folder(app)
        brought = jobs / COPIES / name  # from machines with folders of their own
        here = brought.glob("job-*/run-*/part-*/log-*.txt")
        found = [path.relative_to(brought).as_posix() for path in here] or log_names(jobs, name)
        logs = {path: have.get(path, 0) for path in sorted(found, key=_numbers)}
        pieces = log_pieces(brought, logs, LONGEST_LOG) if brought.exists() else read_logs(jobs, name, logs)
        return LogsHead(ended, len(found) > 1), (LogPiece(*each) for each in pieces)

    def app_folder(self, app: str) -> tuple[str, Path, bool]:
        """Return the name of an app's folders, where they are, and whether it has ended."""
        with self._reading() as db:
            found = db.execute("SELECT name, id, ended IS NOT NULL FROM apps ORDER BY id")
            apps = {each: (number, bool(ended)) for each, number, ended in found}
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
        with closing(connected(self._home / FILE, read_only=True)) as db:
            yield db


def check_app(field: str, name: str, names: list[str]) -> None:
    if name not in names:
        latest = ", ".join(names[-20:]) or "there is none yet"
        raise InputError(field, name, f"an app of this cluster, such as {latest}{did_you_mean(names, name)}")


def _numbers(path: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", path)]


# The same from elsewhere.


class Ask(msgspec.Struct, frozen=True):
    """A question to the arbiter, or a message for it."""

    kind: str
    body: dict[str, Any] = {}
    wait: float = 0.0


class Answer(msgspec.Struct, frozen=True):
    error: str = ""
    body: Any = None


class Client:
    """A cluster whose arbiter one talks to."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self._ask("status")
        return found

    def story(self, app: str) -> dict[str, Any]:
        found: dict[str, Any] = self._ask("story", {"app": app})
        return found

    def past(self, kind: Past, query: PastQuery) -> list[Any]:
        found: list[Any] = self._ask(kind, msgspec.to_builtins(query))
        return found

    def send(self, kind: str, body: dict[str, Any], wait: float) -> str | None:
        self._channel.socket.settimeout(wait + 60)
        found: str | None = self._ask(kind, body, wait)
        return found

    def logs(self, app: str, have: Mapping[str, int]) -> tuple[LogsHead, Iterator[LogPiece]]:
        head = LogsHead(*self._ask("logs", {"app": app, "have": dict(have)}))
        return head, self._log_pieces()

    def _log_pieces(self) -> Iterator[LogPiece]:
        piece: LogPiece
        while (piece := self._channel.receive(LogPiece)).path:
            yield piece

    def _ask(self, kind: str, body: dict[str, Any] | None = None, wait: float = 0.0) -> Any:
        self._channel.send(Ask(kind, body or {}, wait))
        answer: Answer = self._channel.receive(Answer)
        if answer.error:
            raise AstrariumError(answer.error)
        return answer.body


class Service:
    """What the arbiter answers. Without *access* whoever reaches its socket may do all. *bring_logs* brings
    the logs of an app, by its folder, from where it runs."""

    def __init__(
        self,
        home: Path,
        access: AccessSection | None = None,
        bring_logs: Callable[[str, float], None] = lambda app, seconds: None,
    ) -> None:
        self._home, self._access, self._bring_logs = home, access, bring_logs

    def serve(self, channel: Channel, name: str) -> None:
        who = identity(name)
        while True:
            ask: Ask = channel.receive(Ask)
            try:
                self._answer(channel, who, ask)
            except (AstrariumError, OSError, sqlite3.Error) as error:
                if isinstance(error, WireError):
                    raise
                channel.send(Answer(str(error) or type(error).__name__))

    def _answer(self, channel: Channel, who: Identity, ask: Ask) -> None:
        folder, app = StateFolder(self._home, who.user), str(ask.body.get("app", ""))
        match ask.kind:
            case "app":
                channel.send(Answer(body=folder.send("app", self._submitted(who, ask.body), _wait(ask))))
            case "withdraw":
                self._check_app(folder, who, "withdraw", app)
                channel.send(Answer(body=folder.send("withdraw", {"app": app}, _wait(ask))))
            case "drain" | "retry":
                if self._access is not None:
                    allowed(self._access, who, "operate", "")
                channel.send(Answer(body=folder.send(ask.kind, ask.body, _wait(ask))))
            case "status":
                channel.send(Answer(body=self._seen(folder, who)))
            case "story":
                self._check_app(folder, who, "status", app)
                channel.send(Answer(body=folder.story(app)))
            case "events" | "history" | "accounting":
                channel.send(Answer(body=self._past(folder, who, ask.kind, ask.body)))
            case "logs":
                self._check_app(folder, who, "logs", app)
                self._send_logs(channel, folder, app, ask.body.get("have") or {})
            case _:
                known = "app, withdraw, drain, retry, status, story, events, history, accounting or logs"
                raise InputError("kind", ask.kind, known)

    def _submitted(self, who: Identity, body: dict[str, Any]) -> dict[str, Any]:
        if self._access is None:
            return body
        team = chosen_team(self._access, who, str(body.get("team") or ""))
        allowed(self._access, who, "submit", team)
        return {**body, "team": team}

    def _check_app(self, folder: StateFolder, who: Identity, action: Any, app: str) -> None:
        teams = folder.teams()
        check_app("APP", app, list(teams))
        if self._access is not None:
            allowed(self._access, who, action, teams[app])

    def _seen(self, folder: StateFolder, who: Identity) -> dict[str, Any]:
        """Return the status, with the apps that somebody may see; hooks are for operators."""
        found, access = folder.status(), self._access
        if access is None or who.among(access.operators):
            return found
        found["hooks"] = []
        if access.status == "all":
            return found
        mine, status = teams_of(access, who), found["status"]
        shown = [app for app in status["apps"] if app["team"] in mine]
        names = {app["app"] for app in shown}
        for machine in status["machines"]:
            held = machine["held"].items()
            machine["held"] = {gpu: name if name in names else "another team" for gpu, name in held}
        others = [
            app["app"] for app in status["apps"] if app["outcome"] == "open" and app["app"] not in names
        ]
        for app in shown:
            app["why"] = _hidden(app["why"], others)
        return {**found, "status": {**status, "apps": shown}}

    def _past(self, folder: StateFolder, who: Identity, kind: Past, body: dict[str, Any]) -> list[Any]:
        """Return the past of the teams of somebody; operators see all."""
        query, access = Decoder().decode(PastQuery, body, kind), self._access
        if access is None or who.among(access.operators):
            return folder.past(kind, query)
        teams = query.teams or tuple(teams_of(access, who))
        for team in teams or ("",):
            allowed(access, who, kind, team)
        found = folder.past(kind, msgspec.structs.replace(query, teams=teams))
        for each in found if kind == "events" and access.status == "team" else ():
            each["reason"] = each["reason"].partition("; given to ")[0]
        return found

    def _send_logs(self, channel: Channel, folder: StateFolder, app: str, have: Mapping[str, int]) -> None:
        name, _, ended = folder.app_folder(app)
        self._bring_logs(name, 10.0)
        head, pieces = folder.logs(app, have)
        channel.send(Answer(body=(ended, head.several)))
        for piece in pieces:
            channel.send(piece)
        channel.send(LogPiece())


def _hidden(why: str, others: list[str]) -> str:
    """Return why an app waits, without the names of those for whom GPUs are held."""
    for name in others if " held for " in why else ():
        why = why.replace(f" {name}, which needs", " another team, which needs")
    return why


def _wait(ask: Ask) -> float:
    return max(0.0, min(ask.wait, LONGEST_WAIT))


# Who somebody is.


def peer(sock: socket.socket) -> Identity:
    """Return who is at the other end of a Unix socket, as the kernel says."""
    form = struct.Struct("3i")
    found = form.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, form.size))
    return identity(user_name(found[1]))


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def identity(user: str) -> Identity:
    try:
        groups = os.getgrouplist(user, pwd.getpwnam(user).pw_gid)
    except KeyError:  # somebody who is no user of this machine
        return Identity(user)
    return Identity(user, frozenset(_group_name(each) for each in groups))


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def read_keys(field: str, path: str) -> Mapping[str, bytes]:
    """Return the keys of users, from a file with a line `name: key` for each."""
    lines = [line.partition(":") for line in private_text(field, path).splitlines() if line.strip()]
    for name, colon, _ in lines:
        if not colon or not name.strip() or name.strip() == AGENT:
            raise InputError(field, path, f"a line `name: key` for each user, none of them {AGENT}")
    return {name.strip(): checked_key(field, path, key.strip()) for name, _, key in lines}


# The socket in the state folder. Its path may be longer than that of a socket may be: it is named by the
# number of the open folder.


@contextmanager
def _short(home: Path) -> Iterator[str]:
    folder = os.open(home, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{SOCKET}"
    finally:
        os.close(folder)


def unix_listener(home: Path, serve: Callable[[Channel, str], None], everybody: bool) -> Listener:
    """Listen in the state folder, for *everybody* on this machine or for the user of the arbiter alone."""

    def greet(sock: socket.socket) -> tuple[Channel, str]:
        sock.settimeout(60)
        return Channel(sock), peer(sock).user

    (home / SOCKET).unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX)
    with _short(home) as path:
        before = os.umask(0o177)
        try:
            sock.bind(path)
        finally:
            os.umask(before)
    if everybody:
        (home / SOCKET).chmod(0o666)
    return Listener(sock, greet, serve)


def unix_client(home: Path) -> Client | None:
    """Return the arbiter of a state folder; None where none answers, or not to us."""
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(60)
    try:
        with _short(home) as path:
            sock.connect(path)
    except OSError:
        sock.close()
        return None
    return Client(Channel(sock))
