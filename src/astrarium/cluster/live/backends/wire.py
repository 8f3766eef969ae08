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
import select
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from astrarium.cluster.live.limits import ConnectionLimits, Full, Pool, Slot
from astrarium.core.errors import AstrariumError, InputError

# bytes of a message, before and after the other end is known
GREETING = 1 << 12
LARGEST = 1 << 26
SHORTEST_KEY = 32  # characters
HANDSHAKE = 5.0  # seconds in which a stranger has to show a key
CONNECTING = 10.0  # seconds in which an arbiter has to answer
BACKLOG = 1024  # connections that the kernel keeps until they are heard
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


_decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {}
_preparing = threading.Lock()


def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """Return the decoder of a kind of message. One thread at a time prepares one: where several prepare the
    same type, and garbage is collected meanwhile, msgspec 0.22 ends the process."""
    with _preparing:
        if kind not in _decoders:
            _decoders[kind] = msgspec.msgpack.Decoder(kind)
        return _decoders[kind]


def read_message(body: bytes | msgspec.Raw, kind: Any) -> Any:
    """Return what a message says, or raise WireError."""
    try:
        return _decoder(kind).decode(body)
    except (msgspec.MsgspecError, RecursionError, MemoryError, ValueError, OverflowError) as error:
        raise WireError(f"a message was not understood: {error}") from None


class Channel:
    """One end of a connection. It is used by one thread."""

    def __init__(self, sock: socket.socket, sending: bytes = b"", receiving: bytes = b"") -> None:
        self.socket = sock
        self._keys = (sending, receiving)
        self._sent = 0
        self._received = 0
        self.largest = LARGEST
        self.deadline = float("inf")

    def send(self, message: object) -> None:
        self.send_bytes(msgspec.msgpack.encode(message))

    def receive(self, kind: type[T] | Any, largest: int = LARGEST) -> T:
        """Return a message of a kind, which has no more bytes than *largest*."""
        found: T = read_message(self.receive_bytes(largest), kind)
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

    def receive_bytes(self, largest: int = LARGEST) -> bytes:
        [size] = _HEAD.unpack(self._exactly(_HEAD.size))
        if size > min(self.largest, largest):
            raise WireError(f"a message has {size} bytes, and may have {min(self.largest, largest)}")
        tag = self._exactly(_TAG)
        body = self._exactly(size)
        if not hmac.compare_digest(tag, _tag(self._keys[1], self._received, body)):
            raise WireError("a message has no valid proof of the key")
        self._received += 1
        return body

    def close(self) -> None:
        end(self.socket)
        self.socket.close()

    def gone(self) -> bool:
        """Return whether the other end has left, as far as is known here, without waiting."""
        if self.socket.fileno() < 0:
            return True
        poll = select.poll()
        poll.register(self.socket, select.POLLRDHUP)
        return bool(poll.poll(0))

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _exactly(self, count: int) -> bytes:
        found = bytearray()
        while len(found) < count:
            if time.monotonic() > self.deadline:
                raise WireError("the other end took too long")
            try:
                piece = self.socket.recv(min(count - len(found), 1 << 20))
            except OSError as error:
                raise WireError(f"the connection broke: {error}") from None
            if not piece:
                raise WireError("the other end has left")
            found += piece
        return bytes(found)


def end(sock: socket.socket) -> None:
    """End a connection; the thread that uses it notices, and closes it."""
    with suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


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
        sock = socket.create_connection((where.host, where.port), timeout=min(timeout, CONNECTING))
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
    channel.largest, channel.deadline = GREETING, time.monotonic() + CONNECTING
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
    key = keys(hello.name) or secrets.token_bytes(32)
    nonce = secrets.token_bytes(32)
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
        told = f"an address of this machine, and a port that is free ({error.strerror})"
        raise InputError("live.listen", f"{where.host}:{where.port}", told) from None
    return Listener(sock, greet, serve, admission, wrap)
