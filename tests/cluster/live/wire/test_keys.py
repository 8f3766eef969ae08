"""Keys, addresses and certificates: who may connect, and to whom."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from astrarium.cluster.live.wire.channel import Channel, WireError
from astrarium.cluster.live.wire.handshake import Place, connected, read_place
from astrarium.cluster.live.wire.keys import read_key
from astrarium.cluster.live.wire.listener import tcp_listener
from astrarium.cluster.live.wire.tls import server_tls
from astrarium.core.errors import InputError
from tests.support.cluster.echo import KEY, Echo

pytest_plugins = ("tests.support.cluster.fixtures",)


def test_a_key_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("k" * 40 + "\n")
    path.chmod(0o640)
    with pytest.raises(InputError, match="for its owner alone: chmod 600"):
        read_key("--key-file", path)
    path.chmod(0o600)
    assert read_key("--key-file", path) == b"k" * 40
    path.write_text("short")
    with pytest.raises(InputError, match="at least 32 characters"):
        read_key("--key-file", path)
    with pytest.raises(InputError, match="a file that can be read"):
        read_key("--key-file", tmp_path / "none")


@pytest.mark.parametrize("text", ["", "host", "host:", ":70", "host:seven", "host:70000", "host:-1"])
def test_a_place_is_a_host_and_a_port(text: str) -> None:
    with pytest.raises(InputError, match="HOST:PORT"):
        read_place("--arbiter", text)


def test_places() -> None:
    assert read_place("--arbiter", "a.b:70") == Place("a.b", 70)
    assert read_place("--arbiter", "[::1]:70", "file") == Place("::1", 70, "file")


def test_a_port_that_is_taken_is_named(echo: Echo) -> None:
    with pytest.raises(InputError, match=r"live\.listen: expected an address of this machine"):
        tcp_listener(echo.place, {"ann": KEY}.get, lambda *_: None)


def certificate(folder: Path, name: str) -> tuple[str, str]:
    paths = str(folder / f"{name}.pem"), str(folder / f"{name}.key")
    words = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
    subprocess.run(
        ["openssl", *words, "-out", paths[0], "-keyout", paths[1]], check=True, capture_output=True
    )
    return paths


def test_with_tls_nobody_reads_along(tmp_path: Path) -> None:
    pem, key = certificate(tmp_path, "arbiter")
    other, _ = certificate(tmp_path, "other")
    echo = Echo(server_tls(pem, key))
    seen = Listening(echo.place)
    with connected(seen.place._replace(certificate=pem), "ann", KEY) as channel:
        channel.send("hello")
        assert channel.receive(str) == "hello"
    assert seen.bytes
    assert b"hello" not in seen.bytes
    with pytest.raises(WireError, match="certificate"):
        connected(echo.place._replace(certificate=other), "ann", KEY)
    with pytest.raises(WireError):
        connected(echo.place, "ann", KEY)  # without TLS
    with pytest.raises(InputError, match="the arbiter's certificate"):
        connected(echo.place._replace(certificate=str(tmp_path)), "ann", KEY)
    with pytest.raises(InputError, match=r"live\.tls"):
        server_tls(str(tmp_path / "none"), key)
    echo.listener.close()


class Listening:
    """Somebody on the way who reads along, whatever the protocol is."""

    def __init__(self, there: Place) -> None:
        self.bytes = b""
        self._there = there
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.place = Place("127.0.0.1", self._socket.getsockname()[1])
        threading.Thread(target=self._hand_on, daemon=True).start()

    def _hand_on(self) -> None:
        client, _ = self._socket.accept()
        server = socket.create_connection(self._there[:2])
        for one, other in ((client, server), (server, client)):
            threading.Thread(target=self._copy, args=[one, other], daemon=True).start()

    def _copy(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while piece := one.recv(1 << 16):
                self.bytes += piece
                other.sendall(piece)


def test_a_listener_that_is_closed_hears_nobody(echo: Echo) -> None:
    channel = connected(echo.place, "ann", KEY)
    echo.listener.close()
    assert echo.ends.get(timeout=60)
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        try:
            connected(echo.place, "ann", KEY).close()
        except WireError:
            break
    else:
        pytest.fail("it is still heard")
    channel.close()


def test_structs_are_read_as_what_they_are() -> None:
    class One(msgspec.Struct, tag=True):
        number: int

    class Two(msgspec.Struct, tag=True):
        number: int

    left, right = socket.socketpair()
    with Channel(left) as one, Channel(right) as other:
        one.send(Two(3))
        assert other.receive(One | Two) == Two(3)


AT_ONCE = """
import gc, socket, sys, threading
from astrarium.cluster.live.backends.hosts.messages import Orders, Refusal, Report
from astrarium.cluster.live.wire.channel import Channel

def hear():
    left, right = socket.socketpair()
    one, other = Channel(left), Channel(right)
    gate.wait()
    for _ in range(20):
        one.send(Report(0, [], [], [1], []))
        other.receive(Report | Refusal)
        other.send(Orders([]))
        one.receive(Orders)

sys.setswitchinterval(1e-6)
gc.set_threshold(5, 2, 2)
gate = threading.Barrier(6)
threads = [threading.Thread(target=hear) for _ in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_agents_who_connect_at_once_do_not_end_the_arbiter() -> None:
    """Types that several threads prepare at once have ended the process, nine times in ten."""
    for _ in range(3):
        assert subprocess.run([sys.executable, "-c", AT_ONCE], timeout=120).returncode == 0
