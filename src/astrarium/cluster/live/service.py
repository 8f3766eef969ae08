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
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol, TypeVar

import msgspec

from astrarium.cluster.live import limits
from astrarium.cluster.live.access import (
    AccessSection,
    Action,
    Identity,
    Past,
    allowed,
    chosen_team,
    sees,
    teams_of,
)
from astrarium.cluster.live.backends.copies import COPIES
from astrarium.cluster.live.backends.remote import AGENT, LogPiece
from astrarium.cluster.live.backends.wire import (
    Admission,
    Channel,
    Listener,
    WireError,
    checked_key,
    private_text,
    read_message,
)
from astrarium.cluster.live.limits import check_size
from astrarium.cluster.live.machine.as_owner import LONGEST_LOG, log_names, read_logs
from astrarium.cluster.live.machine.folders import app_name
from astrarium.cluster.live.machine.keeping.errands import log_pieces
from astrarium.cluster.live.store import FILE, Store, answer_to, connected, rows
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
            return store.send(kind, body, time.time_ns(), self._owner)

    def answer(self, message: int, wait: float) -> str | None:
        """Return the answer to a message; None: there is none in time."""
        ends = time.monotonic() + wait
        with self._reading() as db:
            while (found := answer_to(db, message)) is None and time.monotonic() < ends and not self._gone():
                time.sleep(POLL)
        return found

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
    """A question to the arbiter, or a message for it; its kind says of what type the body is, which is read
    when its turn has come: read, it may take much more memory."""

    kind: Annotated[str, msgspec.Meta(max_length=100)]
    body: msgspec.Raw = msgspec.Raw(b"\x80")  # an empty mapping
    wait: float = 0.0

    @classmethod
    def of(cls, kind: str, body: Mapping[str, Any] | None = None, wait: float = 0.0) -> Ask:
        return cls(kind, msgspec.Raw(msgspec.msgpack.encode(body or {})), wait)

    def plain(self) -> dict[str, Any]:
        """Return the body as it came."""
        if len(self.body) > limits.LARGEST_APP + limits.OVERHEAD:
            raise InputError(self.kind, f"{len(self.body)} bytes", f"at most {limits.LARGEST_APP} bytes")
        return self._read(dict[str, Any])

    def logs(self) -> dict[str, Any]:
        return self._read(dict[str, str | dict[str, int]])

    def _read(self, kind: Any) -> dict[str, Any]:
        try:
            found: dict[str, Any] = read_message(self.body, kind)
        except WireError as error:
            raise InputError(self.kind, None, f"a mapping of fields ({error})") from None
        limits.check_depth(found, self.kind)
        return found


class AppQuestion(msgspec.Struct, frozen=True):
    app: str


class LogsQuestion(msgspec.Struct, frozen=True):
    """*have*: the bytes of each log that one has."""

    app: str
    have: dict[str, Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]] = {}

    def __post_init__(self) -> None:
        if len(self.have) > limits.MOST_LOGS:
            raise InputError("have", len(self.have), f"at most {limits.MOST_LOGS} logs")


class GpuQuestion(msgspec.Struct, frozen=True):
    machine: str
    gpu: Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
    why: str = ""


Q = TypeVar("Q", bound=msgspec.Struct)


def _read(kind: type[Q], ask: Ask) -> Q:
    body = ask.logs() if kind is LogsQuestion else ask.plain()
    return Decoder().decode_struct(kind, body, ask.kind)


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
        message = msgspec.msgpack.encode(Ask.of(kind, body, wait))
        if len(message) > limits.LARGEST_QUESTION:
            raise InputError(kind, f"{len(message)} bytes", f"at most {limits.LARGEST_QUESTION} bytes")
        self._channel.send_bytes(message)
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
        self._home = home
        self._access = access
        self._bring_logs = bring_logs
        self._turns = limits.Turns(1)
        self._log_turns = limits.Turns(limits.MOST_LOGS_AT_ONCE)
        self._hourly = limits.Hourly("bytes of messages", limits.MOST_HOURLY)

    def is_operator(self, name: str) -> bool:
        """Return whether somebody may do all, and has a reserved place."""
        return self._access is None or identity(name).among(self._access.operators)

    def serve(self, channel: Channel, name: str) -> None:
        who = identity(name)
        while True:
            channel.deadline = time.monotonic() + limits.IDLE
            ask: Ask = channel.receive(Ask, limits.LARGEST_QUESTION)
            try:
                self._answer(channel, who, ask)
            except WireError:
                raise
            except Exception as error:  # whatever was asked, others and the next question are answered
                told = str(error) if isinstance(error, AstrariumError | OSError | sqlite3.Error) else ""
                channel.send(Answer((told or type(error).__name__)[: limits.LONGEST_ANSWER]))

    def refuse(self, channel: Channel, why: str) -> None:
        """Answer whatever somebody asks first with an error."""
        channel.receive(Ask, limits.LARGEST_QUESTION)
        channel.send(Answer(why))

    def _answer(self, channel: Channel, who: Identity, ask: Ask) -> None:
        folder = StateFolder(self._home, who.user, channel.gone)
        match ask.kind:
            case "app" | "withdraw" | "drain" | "retry":
                with self._turns.of(who.user):
                    message = self._left(folder, who, ask)
                channel.send(Answer(body=folder.answer(message, _wait(ask))))
            case "logs":
                with self._log_turns.of(who.user):
                    wanted = _read(LogsQuestion, ask)
                    app = self._known_app(folder, who, "logs", wanted.app)
                    self._send_logs(channel, folder, app, wanted.have)
            case _:
                with self._turns.of(who.user):
                    channel.send(Answer(body=self._told(folder, who, ask)))

    def _told(self, folder: StateFolder, who: Identity, ask: Ask) -> Any:
        """Return what somebody wants to know."""
        match ask.kind:
            case "status":
                return self._seen(folder, who)
            case "story":
                app = self._known_app(folder, who, "status", _read(AppQuestion, ask).app)
                return self._story(folder, who, app)
            case "events" | "history" | "accounting":
                return self._past(folder, who, ask.kind, ask.plain())
        known = "app, withdraw, drain, retry, status, story, events, history, accounting or logs"
        raise InputError("kind", ask.kind, known)

    def _left(self, folder: StateFolder, who: Identity, ask: Ask) -> int:
        """Leave a message for the arbiter; its disk keeps what comes of it, so nobody leaves very many."""
        body = self._message(folder, who, ask)
        if not self.is_operator(who.user):
            self._hourly.take(who.user, len(ask.body) + limits.OVERHEAD)
        return folder.leave(ask.kind, body)

    def _message(self, folder: StateFolder, who: Identity, ask: Ask) -> dict[str, Any]:
        """Return what is left for the arbiter, if somebody may ask for it."""
        if ask.kind == "app":
            return self._submitted(who, ask.plain())
        if ask.kind == "withdraw":
            return {"app": self._known_app(folder, who, "withdraw", _read(AppQuestion, ask).app)}
        if self._access is not None:
            allowed(self._access, who, "operate", "")
        found: dict[str, Any] = msgspec.to_builtins(_read(GpuQuestion, ask))
        return found

    def _submitted(self, who: Identity, body: dict[str, Any]) -> dict[str, Any]:
        check_size(body, "app")
        if self._access is None:
            return body
        team = body.get("team") or ""
        if not isinstance(team, str):
            raise InputError("team", team, "text")
        team = chosen_team(self._access, who, team)
        allowed(self._access, who, "submit", team)
        return {**body, "team": team}

    def _known_app(self, folder: StateFolder, who: Identity, action: Action, app: str) -> str:
        """Return the name of an app, if somebody may do this with it. Of an app that one may not see nobody
        can tell whether it exists."""
        teams = folder.teams()
        visible = self._names(folder, who)
        check_app("APP", app, [name for name in teams if name in visible])
        if self._access is not None:
            allowed(self._access, who, action, teams[app])
        return app

    def _seen(self, folder: StateFolder, who: Identity) -> dict[str, Any]:
        """Return the status, with the apps that somebody may see; hooks are for operators."""
        found = folder.status()
        access = self._access
        if access is None or who.among(access.operators):
            return found
        found["hooks"] = []
        if access.status == "all":
            return found
        mine = teams_of(access, who)
        status = found["status"]
        shown = [app for app in status["apps"] if app["team"] in mine]
        names = {app["app"] for app in shown}
        hiding = self._hiding(folder, who)
        for machine in status["machines"]:
            held = machine["held"].items()
            machine["held"] = {gpu: name if name in names else "another team" for gpu, name in held}
        for app in shown:
            app["why"] = hiding.hidden(app["why"])
        return {**found, "status": {**status, "apps": shown}}

    def _past(self, folder: StateFolder, who: Identity, kind: Past, body: dict[str, Any]) -> list[Any]:
        """Return the past of the teams of somebody; operators see all."""
        query = Decoder().decode(PastQuery, body, kind)
        access = self._access
        if access is None or who.among(access.operators):
            return folder.past(kind, query)
        teams = query.teams or tuple(teams_of(access, who))
        for team in teams or ("",):
            allowed(access, who, kind, team)
        found = folder.past(kind, msgspec.structs.replace(query, teams=teams))
        if kind == "events" and access.status == "team":
            hiding = self._hiding(folder, who)
            for each in found:
                each["reason"] = hiding.hidden(each["reason"])
        return found

    def _story(self, folder: StateFolder, who: Identity, app: str) -> dict[str, Any]:
        found = folder.story(app)
        hiding = self._hiding(folder, who)
        for each in found["decisions"]:
            each["why"] = hiding.hidden(each["why"] or "")
        return found

    def _hiding(self, folder: StateFolder, who: Identity) -> HiddenNames:
        """Return what takes the names out of reasons that somebody may not see: of apps of others, if the
        status is each team's own."""
        return HiddenNames(folder.teams().keys() - self._names(folder, who))

    def _names(self, folder: StateFolder, who: Identity) -> set[str]:
        """Return the names of the apps that somebody may see."""
        access = self._access
        return {n for n, team in folder.teams().items() if access is None or sees(access, who, team)}

    def _send_logs(self, channel: Channel, folder: StateFolder, app: str, have: Mapping[str, int]) -> None:
        name, _, ended = folder.app_folder(app)
        self._bring_logs(name, 10.0)
        head, pieces = folder.logs(app, have)
        channel.send(Answer(body=(ended, head.several)))
        for piece in pieces:
            channel.send(piece)
        channel.send(LogPiece())


class HiddenNames:
    """Names that somebody may not see are taken out of what policies say; they stand there as words of their
    own. A name of several words, or with marks of a sentence in it, is looked for as a whole."""

    OTHER = "another team's app"
    _BETWEEN = re.compile(r"([\s;,:()]+)")

    def __init__(self, names: Iterable[str]) -> None:
        self._words = set[str]()
        self._whole = list[str]()
        for name in names:
            if self._BETWEEN.search(name) or name.endswith("."):
                self._whole.append(name)
            else:
                self._words.add(name)
        self._whole.sort(key=len, reverse=True)

    def hidden(self, reason: str) -> str:
        if not (self._words or self._whole):
            return reason
        told = reason.partition("; given to ")[0]
        for name in self._whole:
            told = told.replace(name, self.OTHER)
        words = "".join(self._word(each) for each in self._BETWEEN.split(told))
        return words.replace(f"app {self.OTHER}", "app")

    def _word(self, word: str) -> str:
        plain = word.rstrip(".")
        known = word in self._words or plain in self._words
        return self.OTHER + word[len(plain) :] if known else word


def _wait(ask: Ask) -> float:
    return max(0.0, min(LONGEST_WAIT, ask.wait))  # in this order it is 0 for what is no number


# Who somebody is.


def peer(sock: socket.socket) -> Identity:
    """Return who is at the other end of a Unix socket, as the kernel says."""
    form = struct.Struct("iII")  # process, user, group
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
        if not colon or not name.strip() or name.strip() == AGENT or set(name) & set("\"'"):
            told = f"a line `name: key` for each user, without quotes, none of them {AGENT}"
            raise InputError(field, path, told)
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


def unix_listener(
    home: Path,
    serve: Callable[[Channel, str], None],
    everybody: bool,
    admission: Admission | None = None,
) -> Listener:
    """Listen in the state folder, for *everybody* on this machine or for the user of the arbiter alone."""

    def greet(sock: socket.socket) -> tuple[Channel, str]:
        sock.settimeout(limits.IDLE)
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
    return Listener(sock, greet, serve, admission, closed=partial(_remove, home, _file_number(home)))


def _file_number(home: Path) -> tuple[int, int]:
    found = (home / SOCKET).stat()
    return found.st_dev, found.st_ino


def _remove(home: Path, ours: tuple[int, int]) -> None:
    """Remove the socket of an arbiter that leaves, unless another one has put its own there."""
    with suppress(OSError):
        if _file_number(home) == ours:
            (home / SOCKET).unlink()


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
