"""The socket in the state folder, by which users of the arbiter's machine reach it.

Its path may be longer than that of a socket may be: it is named by the number of the open folder.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from astrarium.cluster.live.access import Identity
from astrarium.cluster.live.service.client import Client
from astrarium.cluster.live.service.identities import identity, user_name
from astrarium.cluster.live.wire.channel import Channel
from astrarium.cluster.live.wire.connections import IDLE
from astrarium.cluster.live.wire.listener import Admission, Listener

SOCKET = "arbiter.sock"


def peer(sock: socket.socket) -> Identity:
    """Return who is at the other end of a Unix socket, as the kernel says."""
    form = struct.Struct("iII")  # process, user, group
    credentials = form.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, form.size))
    return identity(user_name(credentials[1]))


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
        sock.settimeout(IDLE)
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
    status = (home / SOCKET).stat()
    return status.st_dev, status.st_ino


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
