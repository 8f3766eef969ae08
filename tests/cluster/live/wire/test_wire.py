"""Messages over a socket: whoever has no key is not heard, and nothing passes that was changed on the way."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from astrarium.cluster.live.wire import handshake
from astrarium.cluster.live.wire.channel import Channel, WireError
from astrarium.cluster.live.wire.handshake import GREETING, Place, connected
from tests.support.cluster.echo import KEY, Echo

pytest_plugins = ("tests.support.cluster.fixtures",)

OTHER = b"o" * 32


def test_messages_go_both_ways(echo: Echo) -> None:
    with connected(echo.place, "ann", KEY) as channel:
        for message in ("word", [1, 2.5, None], {"key": b"\0" * 3_000_000}):
            channel.send(message)
            assert channel.receive(Any) == message
    assert [name for name, _ in echo.heard] == ["ann"] * 3


@pytest.mark.parametrize(("name", "key"), [("ann", OTHER), ("bob", KEY), ("", KEY), ("é" * 100, KEY)])
def test_who_has_no_key_is_not_heard(echo: Echo, name: str, key: bytes) -> None:
    with pytest.raises(WireError, match="does not have the same key"):
        connected(echo.place, name, key)
    assert not echo.heard


def test_who_goes_on_without_a_proof_is_not_heard(echo: Echo) -> None:
    """A stranger need not care whether the arbiter has the key."""
    with socket.create_connection(echo.place[:2], timeout=30) as sock:
        stranger = Channel(sock)
        stranger.send({"name": "ann", "nonce": b"n" * 32})
        assert stranger.receive(dict[str, bytes]).keys() == {"nonce", "proof"}
        stranger.send(b"p" * 32)
        with pytest.raises(WireError, match=r"left|broke"):
            stranger.receive(Any)
    assert not echo.heard


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">I", 1 << 31) + b"x" * 100,
        struct.pack(">I", GREETING + 1) + b"x" * 5000,
        struct.pack(">I", 3) + b"\0" * 32 + b"abc",
        b"",
    ],
    ids=["another protocol", "huge", "too long before one is known", "no proof", "nothing"],
)
def test_strangers_who_say_something_else_are_left(echo: Echo, sent: bytes) -> None:
    with socket.create_connection(echo.place[:2], timeout=30) as sock:
        sock.sendall(sent)
        if not sent:
            sock.shutdown(socket.SHUT_WR)
        assert _read_to_end(sock) == b""
    assert not echo.heard


def _read_to_end(sock: socket.socket) -> bytes:
    try:
        return sock.recv(1)
    except ConnectionResetError:
        return b""


def test_silent_strangers_are_left_and_hold_up_nobody(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "HANDSHAKE", 1.0)
    silent = [socket.create_connection(echo.place[:2], timeout=60) for _ in range(10)]
    with connected(echo.place, "ann", KEY) as channel:
        channel.send("hello")
        assert channel.receive(str) == "hello"
    for sock in silent:
        assert _read_to_end(sock) == b""
        sock.close()


class Between:
    """Somebody on the way who hands on what a client says, changed."""

    def __init__(self, there: Place, changed: Callable[[int, bytes], list[bytes]]) -> None:
        self._there = there
        self._changed = changed
        self.seen = b""
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.place = Place("127.0.0.1", self._socket.getsockname()[1])
        threading.Thread(target=self._hand_on, daemon=True).start()

    def _hand_on(self) -> None:
        client, _ = self._socket.accept()
        server = socket.create_connection(self._there[:2])
        threading.Thread(target=self._back, args=[server, client], daemon=True).start()
        number = 0
        while head := client.recv(4, socket.MSG_WAITALL):
            frame = head + client.recv(32 + struct.unpack(">I", head)[0], socket.MSG_WAITALL)
            self.seen += frame
            for changed in self._changed(number, frame):
                server.sendall(changed)
            number += 1
        server.close()

    def _back(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while piece := server.recv(1 << 16):
                self.seen += piece
                client.sendall(piece)
        client.close()


FIRST = 2  # the number of the first message, after those by which both ends are known


def as_it_is(number: int, frame: bytes) -> list[bytes]:
    return [frame]


def altered(number: int, frame: bytes) -> list[bytes]:
    return [frame if number != FIRST + 1 else frame[:-1] + bytes([frame[-1] ^ 1])]


def repeated(number: int, frame: bytes) -> list[bytes]:
    return [frame] * (2 if number == FIRST else 1)


def left_out(number: int, frame: bytes) -> list[bytes]:
    return [] if number == FIRST else [frame]


def test_the_key_itself_is_never_sent(echo: Echo) -> None:
    between = Between(echo.place, as_it_is)
    with connected(between.place, "ann", KEY) as channel:
        channel.send("hello")
        assert channel.receive(str) == "hello"
    assert b"hello" in between.seen  # not secret, without TLS: the page says so
    assert KEY not in between.seen


@pytest.mark.parametrize(("changed", "heard"), [(altered, 1), (repeated, 1), (left_out, 0)])
def test_what_was_changed_on_the_way_is_not_heard(
    echo: Echo, changed: Callable[[int, bytes], list[bytes]], heard: int
) -> None:
    with connected(Between(echo.place, changed).place, "ann", KEY) as channel:
        channel.send("first")
        channel.send("second")
        assert echo.ends.get(timeout=60) == "a message has no valid proof of the key"
    assert len(echo.heard) == heard


def test_what_is_sent_back_to_its_sender_is_not_heard() -> None:
    """Each direction has a key of its own."""
    left, right = socket.socketpair()
    with Channel(left, b"up", b"down") as one, right:
        one.send("mine")
        right.sendall(right.recv(1000))
        with pytest.raises(WireError, match="no valid proof"):
            one.receive(str)


def test_a_message_that_is_too_long_is_not_sent() -> None:
    left, right = socket.socketpair()
    with Channel(left) as one, Channel(right) as other:
        one.largest = other.largest = 100
        with pytest.raises(WireError, match="has 202 bytes, and may have 100"):
            one.send("x" * 200)
        one.send("short")
        assert other.receive(str) == "short"


def test_a_message_of_another_kind_is_an_error() -> None:
    left, right = socket.socketpair()
    with Channel(left) as one, Channel(right) as other:
        one.send({"a": 1})
        with pytest.raises(WireError, match="not understood"):
            other.receive(list[int])
        one.send_bytes(b"\xc1")
        with pytest.raises(WireError, match="not understood"):
            other.receive(Any)
        one.close()
        with pytest.raises(WireError, match="left"):
            other.receive(Any)
