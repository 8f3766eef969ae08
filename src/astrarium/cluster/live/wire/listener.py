"""A listener hears who connects, finds out who that is, and serves each in a thread of its own.

Until somebody has shown a key, the connection has the place of a stranger; then it has one of its kind.
"""

from __future__ import annotations

import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from astrarium.cluster.live.wire.channel import Channel, WireError, end
from astrarium.cluster.live.wire.connections import ConnectionLimits, Full, Pool, Slot
from astrarium.cluster.live.wire.handshake import HANDSHAKE, Keys, Place, accepted
from astrarium.core.errors import InputError

BACKLOG = 1024  # connections that the kernel keeps until they are heard


class Admission(NamedTuple):
    """Who may come in at a time: so many *strangers*, and others as the *pool* of each name has places. Who
    finds none hears why from *refuse*."""

    pool: Callable[[str], Pool]
    refuse: Callable[[Channel, str], None] = lambda channel, why: None
    strangers: int = ConnectionLimits().strangers


def everybody() -> Admission:
    """Return an admission that makes no difference between those who are known."""
    pool = Pool("everybody", ConnectionLimits().agents)
    return Admission(lambda name: pool)


class Listener:
    """Threads that hear who connects, and hand a channel and a name to *serve*, one thread for each. *greet*
    finds out who somebody is; *wrap* makes a connection one of TLS, without waiting."""

    def __init__(
        self,
        sock: socket.socket,
        greet: Callable[[socket.socket], tuple[Channel, str]],
        serve: Callable[[Channel, str], None],
        admission: Admission | None = None,
        wrap: Callable[[socket.socket], socket.socket] = lambda sock: sock,
        closed: Callable[[], None] = lambda: None,
    ) -> None:
        self._socket = sock
        self._greet = greet
        self._serve = serve
        self._wrap = wrap
        self._closed = closed
        self._admission = admission or everybody()
        self._strangers = Pool("strangers", self._admission.strangers, yields=True)
        self._open: set[Channel] = set()
        sock.listen(BACKLOG)
        self.address: Any = sock.getsockname()
        threading.Thread(target=self._listen, name="listener", daemon=True).start()

    def close(self) -> None:
        self._closed()
        end(self._socket)
        self._socket.close()
        for channel in list(self._open):
            channel.close()

    def _listen(self) -> None:
        while True:
            try:
                sock, address = self._socket.accept()
            except OSError:
                if self._socket.fileno() < 0:
                    return
                self._strangers.give_way()  # too many files are open: some will be closed
                time.sleep(0.1)
            else:
                self._hear(sock, str(address[0]) if address else "")

    def _hear(self, sock: socket.socket, host: str) -> None:
        """Have a thread find out who has connected; of strangers that are too many, one has to leave."""
        try:
            sock = self._wrap(sock)
            slot = self._strangers.enter(host, partial(end, sock))
        except OSError:
            sock.close()
            return
        try:
            threading.Thread(target=self._meet, args=[sock, slot], daemon=True).start()
        except RuntimeError:  # the system has no thread left
            slot.leave()
            sock.close()

    def _meet(self, sock: socket.socket, stranger: Slot) -> None:
        try:
            channel, name = self._greet(sock)
            slot = self._entered(channel, name)
        except (WireError, OSError):
            sock.close()
            return
        finally:
            stranger.leave()
        try:
            self._serve_open(channel, name)
        finally:
            slot.leave()

    def _entered(self, channel: Channel, name: str) -> Slot:
        """Return a place among those who are known; who finds none is a stranger until told so."""
        try:
            return self._admission.pool(name).enter(name, partial(end, channel.socket))
        except Full as full:
            channel.socket.settimeout(HANDSHAKE)
            channel.deadline = time.monotonic() + HANDSHAKE
            self._admission.refuse(channel, str(full))
            raise WireError(str(full)) from None

    def _serve_open(self, channel: Channel, name: str) -> None:
        self._open.add(channel)
        if self._socket.fileno() < 0:  # the listener was closed meanwhile
            end(channel.socket)
        try:
            with channel, suppress(WireError, OSError):
                self._serve(channel, name)
        except Exception as error:  # a fault of ours ends this connection, and nothing else
            print(f"the connection of {name} was ended: {error!r}", file=sys.stderr, flush=True)
        finally:
            self._open.discard(channel)


def tcp_listener(
    where: Place,
    keys: Keys,
    serve: Callable[[Channel, str], None],
    tls: ssl.SSLContext | None = None,
    timeout: float = 30.0,
    admission: Admission | None = None,
) -> Listener:
    """Listen on an address of this machine for those who have a key."""

    def wrap(sock: socket.socket) -> socket.socket:
        sock.settimeout(HANDSHAKE)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False) if tls else sock

    def greet(sock: socket.socket) -> tuple[Channel, str]:
        if isinstance(sock, ssl.SSLSocket):
            sock.do_handshake()
        return accepted(sock, keys, timeout)

    family = socket.AF_INET6 if ":" in where.host else socket.AF_INET
    try:
        sock = socket.create_server((where.host, where.port), family=family)
    except OSError as error:
        expected = f"an address of this machine, and a port that is free ({error.strerror})"
        raise InputError("live.listen", f"{where.host}:{where.port}", expected) from None
    return Listener(sock, greet, serve, admission, wrap)
