"""A channel carries messages between two who may share a key, each with a proof that it came as it was sent.

Messages are MessagePack of a known type. Whatever the other end sends, reading it raises WireError at worst.
"""

from __future__ import annotations

import hmac
import select
import socket
import struct
import threading
import time
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from astrarium.core.errors import AstrariumError

LARGEST = 1 << 26
_HEAD = struct.Struct(">I")
_TAG = 32

T = TypeVar("T")


class WireError(AstrariumError):
    """The other end is gone, or says what it may not."""


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
    """It sends and receives messages in frames, each with its proof; one thread uses it."""

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
        message: T = read_message(self.receive_bytes(largest), kind)
        return message

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
        content = bytearray()
        while len(content) < count:
            if time.monotonic() > self.deadline:
                raise WireError("the other end took too long")
            try:
                piece = self.socket.recv(min(count - len(content), 1 << 20))
            except OSError as error:
                raise WireError(f"the connection broke: {error}") from None
            if not piece:
                raise WireError("the other end has left")
            content += piece
        return bytes(content)


def end(sock: socket.socket) -> None:
    """End a connection; the thread that uses it notices, and closes it."""
    with suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _tag(key: bytes, number: int, body: bytes) -> bytes:
    return hmac.digest(key, number.to_bytes(8, "big") + body, "sha256")
