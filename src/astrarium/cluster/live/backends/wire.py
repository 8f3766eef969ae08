"""Messages between the arbiter, its agents and its users: framed, bounded, each with a proof of the key.

A connection begins with a challenge in both directions: each end shows that it has the key, which itself is
never sent. From both challenges comes a key for each direction; with it every message is signed, and with its
number, so that none can be altered, left out, repeated or sent back. Messages can be read on the way, unless
the connection is one of TLS.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from astrarium.core.errors import AstrariumError, InputError

GREETING, LARGEST = 1 << 12, 1 << 26  # bytes of a message, before and after the other end is known
SHORTEST_KEY = 32  # characters
HANDSHAKE = 10.0  # seconds that it may take
STRANGERS = 64  # connections at once whose other end is not yet known
_HEAD = struct.Struct(">I")
_TAG = 32
_VERSION = b"astrarium-1"

T = TypeVar("T")


class WireError(AstrariumError):
    """The other end is gone, or says what it may not."""


class _Hello(msgspec.Struct, frozen=True):
    name: str
    nonce: bytes


class _Challenge(msgspec.Struct, frozen=True):
    nonce: bytes
    proof: bytes


class Channel:
    """One end of a connection. It is used by one thread."""

    def __init__(self, sock: socket.socket, sending: bytes = b"", receiving: bytes = b"") -> None:
        self.socket, self._keys, self._sent, self._received = sock, (sending, receiving), 0, 0
        self.largest, self.deadline = LARGEST, float("inf")

    def send(self, message: object) -> None:
        self.send_bytes(msgspec.msgpack.encode(message))

    def receive(self, kind: type[T] | Any) -> T:
        try:
            found: T = msgspec.msgpack.decode(self.receive_bytes(), type=kind)
        except msgspec.MsgspecError as error:
            raise WireError(f"a message was not understood: {error}") from None
        return found

    def send_bytes(self, body: bytes) -> None:
        if len(body) > self.largest:
            raise WireError(f"a message has {len(body)} bytes, and may have {self.largest}")
        head = _HEAD.pack(len(body)) + _tag(self._keys[0], self._sent, body)
        self._sent += 1
        try:
            self.socket.sendall(head + body)
        except OSError as error:
            raise WireError(f"the connection broke: {error}") from None

    def receive_bytes(self) -> bytes:
        [size] = _HEAD.unpack(self._exactly(_HEAD.size))
        if size > self.largest:
            raise WireError(f"a message has {size} bytes, and may have {self.largest}")
        tag, body = self._exactly(_TAG), self._exactly(size)
        if not hmac.compare_digest(tag, _tag(self._keys[1], self._received, body)):
            raise WireError("a message has no valid proof of the key")
        self._received += 1
        return body

    def close(self) -> None:
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _exactly(self, count: int) -> bytes:
        found = bytearray()
        while len(found) < count:
            if time.monotonic() > self.deadline:
                raise WireError("the other end took too long to say who it is")
            try:
                piece = self.socket.recv(min(count - len(found), 1 << 20))
            except OSError as error:
                raise WireError(f"the connection broke: {error}") from None
            if not piece:
                raise WireError("the other end has left")
            found += piece
        return bytes(found)


def _tag(key: bytes, number: int, body: bytes) -> bytes:
    return hmac.digest(key, number.to_bytes(8, "big") + body, "sha256")


def _derived(key: bytes, use: bytes, hello: _Hello, nonce: bytes) -> bytes:
    return hmac.digest(key, b"\0".join((_VERSION, use, hello.name.encode(), hello.nonce, nonce)), "sha256")


class Place(NamedTuple):
    """Where an arbiter listens, and the file with the certificate that it shows, if it speaks TLS."""

    host: str
    port: int
    certificate: str = ""


def read_place(field: str, text: str, certificate: str = "") -> Place:
    """Read HOST:PORT; an IPv6 address may stand in brackets."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 <= int(port) < 1 << 16:
        raise InputError(field, text, "HOST:PORT, such as 10.0.0.1:7070")
    return Place(host.strip("[]"), int(port), certificate)


def connected(where: Place, name: str, key: bytes, timeout: float = 30.0) -> Channel:
    """Return a channel to an arbiter that has shown that it has the key."""
    try:
        sock = socket.create_connection((where.host, where.port), timeout=min(timeout, HANDSHAKE))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if where.certificate:
            sock = _client_tls(where.certificate).wrap_socket(sock)
    except OSError as error:
        raise WireError(f"no connection to {where.host}:{where.port}: {error}") from None
    channel = Channel(sock)
    try:
        return _introduced(channel, _Hello(name, secrets.token_bytes(32)), key, timeout)
    except BaseException:
        channel.close()
        raise


def _introduced(channel: Channel, hello: _Hello, key: bytes, timeout: float) -> Channel:
    channel.largest, channel.deadline = GREETING, time.monotonic() + HANDSHAKE
    channel.send(hello)
    answer: _Challenge = channel.receive(_Challenge)
    if not hmac.compare_digest(answer.proof, _derived(key, b"server", hello, answer.nonce)):
        raise WireError(f"the arbiter does not have the same key for {hello.name}")
    channel.send(_derived(key, b"client", hello, answer.nonce))
    channel.socket.settimeout(timeout)
    use = [_derived(key, each, hello, answer.nonce) for each in (b"up", b"down")]
    return Channel(channel.socket, *use)


Keys = Callable[[str], bytes | None]


def accepted(sock: socket.socket, keys: Keys, timeout: float = 30.0) -> tuple[Channel, str]:
    """Return a channel to whoever has connected, and the name whose key it has shown to have."""
    sock.settimeout(HANDSHAKE)
    channel = Channel(sock)
    channel.largest, channel.deadline = GREETING, time.monotonic() + HANDSHAKE
    hello: _Hello = channel.receive(_Hello)
    key, nonce = keys(hello.name) or secrets.token_bytes(32), secrets.token_bytes(32)
    channel.send(_Challenge(nonce, _derived(key, b"server", hello, nonce)))
    if not hmac.compare_digest(channel.receive(bytes), _derived(key, b"client", hello, nonce)):
        raise WireError(f"somebody who says to be {hello.name!r} does not have the key")
    sock.settimeout(timeout)
    use = [_derived(key, each, hello, nonce) for each in (b"down", b"up")]
    return Channel(sock, *use), hello.name


def private_text(field: str, path: str | Path) -> str:
    """Return what a file of keys says. It must be for its owner alone."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                raise InputError(field, str(path), f"a file for its owner alone: chmod 600 {path}")
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(field, str(path), f"a file that can be read ({error})") from None


def checked_key(field: str, path: str | Path, text: str) -> bytes:
    if len(text) < SHORTEST_KEY:
        told = f"a key of at least {SHORTEST_KEY} characters, such as `openssl rand -hex 32` makes"
        raise InputError(field, str(path), told)
    return text.encode()


def read_key(field: str, path: str | Path) -> bytes:
    return checked_key(field, path, private_text(field, path).strip())


# TLS, where it is wanted: the arbiter shows a certificate, which others have as a file.


def server_tls(certificate: str, key: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise InputError("live.tls", certificate, f"files with a certificate and its key ({error})") from None
    return context


def _client_tls(certificate: str) -> ssl.SSLContext:
    """Trust this certificate, or whom it has signed, and nobody else: names need not be right then."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    try:
        context.load_verify_locations(certificate)
    except (OSError, ssl.SSLError) as error:
        raise InputError("--certificate", certificate, f"the arbiter's certificate ({error})") from None
    return context


class Listener:
    """Threads that hear who connects, and hand a channel and a name to *serve*, one thread for each."""

    def __init__(
        self,
        sock: socket.socket,
        greet: Callable[[socket.socket], tuple[Channel, str]],
        serve: Callable[[Channel, str], None],
    ) -> None:
        self._socket, self._greet, self._serve = sock, greet, serve
        self._strangers = threading.BoundedSemaphore(STRANGERS)
        self._open: set[Channel] = set()
        sock.listen(STRANGERS)
        self.address: Any = sock.getsockname()
        threading.Thread(target=self._listen, name="listener", daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for channel in list(self._open):
            channel.close()

    def _listen(self) -> None:
        while True:
            try:
                sock, _ = self._socket.accept()
            except OSError:
                if self._socket.fileno() < 0:
                    return
                time.sleep(0.1)  # too many files are open: some will be closed
                continue
            if self._strangers.acquire(blocking=False):
                threading.Thread(target=self._meet, args=[sock], daemon=True).start()
            else:
                sock.close()

    def _meet(self, sock: socket.socket) -> None:
        try:
            channel, name = self._greet(sock)
        except (WireError, OSError):
            sock.close()
            return
        finally:
            self._strangers.release()
        self._open.add(channel)
        with channel, suppress(WireError, OSError):
            self._serve(channel, name)
        self._open.discard(channel)


def tcp_listener(
    where: Place,
    keys: Keys,
    serve: Callable[[Channel, str], None],
    tls: ssl.SSLContext | None = None,
    timeout: float = 30.0,
) -> Listener:
    """Listen on an address of this machine for those who have a key."""

    def greet(sock: socket.socket) -> tuple[Channel, str]:
        sock.settimeout(HANDSHAKE)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return accepted(tls.wrap_socket(sock, server_side=True) if tls else sock, keys, timeout)

    family = socket.AF_INET6 if ":" in where.host else socket.AF_INET
    try:
        sock = socket.create_server((where.host, where.port), family=family)
    except OSError as error:
        told = f"an address of this machine, and a port that is free ({error.strerror})"
        raise InputError("live.listen", f"{where.host}:{where.port}", told) from None
    return Listener(sock, greet, serve)
