"""Who uses the cluster of faults.py: each a process that has become a user without a name, forked early."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from astrarium.cluster.live.machine.keeping.privileges import become, die_with_parent
from astrarium.cluster.live.machine.owners import NO_GROUP
from astrarium.cluster.live.service.client import Client
from astrarium.cluster.live.service.unix_socket import SOCKET, unix_client
from astrarium.core.errors import AstrariumError

USERS = {61001: "red", 61002: "blue"}  # and their teams
STRANGER = 61003  # of no team
IDLE = 300  # connections at once
STRANGERS = 100  # connections at once


class Poll(NamedTuple):
    at: float  # by the monotonic clock, as the client asked for the status
    took: float  # seconds until the answer


class LogsRead(NamedTuple):
    """What a user has read of the logs of its own apps, and whether it was refused those of others."""

    size: int  # bytes
    leaked: int  # pieces with words of a guarded file
    refused: bool


class Child(NamedTuple):
    """A process of a user, and a file without a name to which it writes its results, a line each."""

    process: int
    file: int

    def results(self) -> list[Any]:
        """Wait for its end, and return what it has written."""
        os.waitpid(self.process, 0)
        return self.results_so_far()

    def results_so_far(self) -> list[Any]:
        words = os.pread(self.file, os.fstat(self.file).st_size, 0)
        return [json.loads(line) for line in words.splitlines()]

    def end(self) -> list[Any]:
        os.kill(self.process, signal.SIGKILL)
        return self.results()


def as_user(user: int, do: Callable[[Callable[[Any], None]], None]) -> Child:
    """Have a function run in a process of a user; what it hands to its argument is kept, a line each."""
    parent = os.getpid()
    file = os.memfd_create("told", os.MFD_CLOEXEC)
    child = os.fork()
    if child:
        return Child(child, file)
    try:
        become({"user": user, "group": NO_GROUP, "extra_groups": []})
        die_with_parent(parent, signal.SIGKILL)
        do(lambda words: _write(file, words))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _write(file: int, words: Any) -> None:
    os.write(file, json.dumps(words).encode() + b"\n")


@contextlib.contextmanager
def client_of(home: Path) -> Any:
    """Hand out a connection to the arbiter, as soon as one answers."""
    while (client := unix_client(home)) is None:
        time.sleep(0.1)
    try:
        yield client
    finally:
        client._channel.close()


def submit(home: Path, bodies: Sequence[dict[str, Any]], pause: float, tell: Callable[[Any], None]) -> None:
    """Submit apps, each again and again until it is known to be in the books."""
    for body in bodies:
        while (answer := _submitted(home, body)) is None:
            time.sleep(0.1)
        tell([body["name"], answer])
        time.sleep(pause)


def _submitted(home: Path, body: dict[str, Any]) -> str | None:
    """Return "accepted", why an app was refused, or None: the arbiter has died meanwhile."""
    try:
        with client_of(home) as client:
            answer: str | None = client.send("app", body, 20.0)
    except (AstrariumError, OSError):
        return None
    had = answer is not None and "no other app has had" in answer  # the answer to an earlier try was lost
    return "accepted" if had else answer


def poll(home: Path, tell: Callable[[Any], None]) -> None:
    """Ask for the status again and again, and tell when that was and how long the answer took."""
    while True:
        with contextlib.suppress(AstrariumError, OSError), client_of(home) as client:
            at = time.monotonic()
            client.status()
            tell([at, time.monotonic() - at])
        time.sleep(0.1)


def flood(home: Path, count: int, words: bytes, tell: Callable[[Any], None]) -> None:
    """Hold so many connections that say nothing more than this, and let go of them, again and again."""
    while True:
        with client_of(home):
            pass  # there is an arbiter
        held = [
            connection
            for connection in (_connected(home, words) for _ in range(count))
            if connection is not None
        ]
        tell(len(held))
        time.sleep(8)
        for connection in held:
            connection.close()
        time.sleep(4)


def _connected(home: Path, words: bytes) -> socket.socket | None:
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.connect(str(home / SOCKET))
        sock.settimeout(5)
        sock.sendall(words)
    except OSError:
        sock.close()
        return None
    return sock


def read_logs(
    home: Path, apps: Sequence[str], others: str, token: bytes, tell: Callable[[Any], None]
) -> None:
    """Tell how many bytes the logs of our apps have, in how many of them the token stands, and whether those
    of an app of the other team were refused."""
    size = leaked = 0
    with client_of(home) as client:
        for app in apps:
            before = b""
            for piece in client.logs(app, {})[1]:
                size = size + len(piece.body)
                leaked = leaked + (token in before + piece.body)
                before = piece.body[-len(token) :]
        tell([size, leaked, _refused(client, others)])


def _refused(client: Client, app: str) -> bool:
    try:
        client.logs(app, {})
    except AstrariumError:
        return True
    return False
