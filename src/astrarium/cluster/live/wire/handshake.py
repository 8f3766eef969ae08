"""Two ends of a connection show each other that they have the same key, and never send it.

Both sides answer a challenge; from what was said they derive a key for each direction of the channel.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from astrarium.cluster.live.wire.channel import Channel, WireError
from astrarium.cluster.live.wire.tls import client_tls
from astrarium.core.errors import InputError

# bytes of a message, before and after the other end is known
GREETING = 1 << 12
HANDSHAKE = 5.0  # seconds in which a stranger has to show a key
CONNECTING = 10.0  # seconds in which an arbiter has to answer
_VERSION = b"astrarium-1"


class _Hello(msgspec.Struct, frozen=True):
    name: str
    nonce: bytes


class _Challenge(msgspec.Struct, frozen=True):
    nonce: bytes
    proof: bytes


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
            sock = client_tls(where.certificate).wrap_socket(sock)
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
    use = [_derived(key, direction, hello, answer.nonce) for direction in (b"up", b"down")]
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
    use = [_derived(key, direction, hello, nonce) for direction in (b"down", b"up")]
    return Channel(sock, *use), hello.name
