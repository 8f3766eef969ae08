"""Whatever strangers, users and agents say, the arbiter goes on: seeded mutations of what they may say."""

from __future__ import annotations

import gc
import os
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from astrarium.cluster.live.access import AccessSection
from astrarium.cluster.live.backend import MachineStatus
from astrarium.cluster.live.backends.hosts.backend import AgentsBackend
from astrarium.cluster.live.backends.hosts.checkpoints import Checkpoint, Stamp
from astrarium.cluster.live.backends.hosts.messages import (
    AGENT,
    GetCheckpoint,
    Join,
    PutCheckpoint,
    PutLogs,
    Report,
)
from astrarium.cluster.live.service.client import Ask, Client
from astrarium.cluster.live.service.service import Service
from astrarium.cluster.live.service.state_folder import LogsHead
from astrarium.cluster.live.store import Store, open_database
from astrarium.cluster.live.watching.history import PastQuery
from astrarium.cluster.live.wire.channel import Channel, WireError, _tag
from astrarium.cluster.live.wire.connections import Connections, Pool
from astrarium.cluster.live.wire.handshake import Place, connected
from astrarium.cluster.live.wire.listener import Admission, tcp_listener
from tests.support.cluster.hosts import waited

KEYS = {name: name.encode() * 16 for name in ("alice", "bob", AGENT)}
TIMEOUT = 0.5  # seconds: a mutated question may ask to wait for long
CHALLENGE = 200  # bytes, at most: all that a stranger hears
SPAN = 64 << 20  # bytes by which the process may have grown
LOG = "job-0/run-1/part-0/log-0.txt"
ASKS = [
    Ask.of("app", {"name": "new", "command": "true", "length": "1s", "env": {"A": "b"}, "team": "vision"}),
    Ask.of("withdraw", {"app": "see"}),
    Ask.of("drain", {"machine": "0", "gpu": 0, "why": "hot"}),
    Ask.of("status"),
    Ask.of("story", {"app": "see"}),
    Ask.of("events", msgspec.to_builtins(PastQuery())),
    Ask.of("accounting", {"by": ["team", "day"], "since": 5}),
    Ask.of("logs", {"app": "see", "have": {LOG: 3}}),
]
HELD = Checkpoint("0-see/job-0", 1, Stamp(1, 2), 0.5)
AGENTS: list[object] = [
    Join("left", MachineStatus(2), "10.0.0.1", 0, "", 0, False, [HELD]),
    PutCheckpoint(HELD),
    GetCheckpoint(HELD),
    PutLogs(3),
]
REPORT = Report(0, [], [HELD], [1, 2], [(HELD, "no room")])
ODD: list[object] = [
    None, True, -1, 0, 1 << 62, (1 << 64) - 1, 1.5, float("inf"), float("nan"), "", "x" * 5000, "../..",
    "a\0b", "\n", b"\xff", [], {},
    [[]], {"a": {}}, {"": None}, [1] * 500, msgspec.msgpack.Ext(7, b"x"), "see", LOG,
]  # fmt: skip


class World:
    """An arbiter that answers users and agents; it notes what ends a thread."""

    def __init__(self, home: Path) -> None:
        self.service = Service(home, AccessSection(("alice",), {"vision": ("bob",)}, "team"))
        self.backend = AgentsBackend(home, patience=1.0)
        self.backend.enter(1)
        known = Connections(operator=self.service.is_operator)

        def pool(name: str) -> Pool:
            return known.agents if name == AGENT else known.of(name)

        admission = Admission(pool, self.service.refuse, 32)
        here = Place("127.0.0.1", 0)
        self.listener = tcp_listener(here, KEYS.get, self._serve, timeout=5.0, admission=admission)
        self.place = Place("127.0.0.1", self.listener.address[1])

    def _serve(self, channel: Channel, name: str) -> None:
        if name == AGENT:
            self.backend.serve(channel)
        else:
            self.service.serve(channel, name)

    def channel(self, name: str) -> Channel:
        return connected(self.place, name, KEYS[name], TIMEOUT)


@pytest.fixture
def world(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[World]:
    """Check, when all was said, that a good client is served and that nothing is left behind."""
    Store(tmp_path).close()
    with closing(open_database(tmp_path / "cluster.db")) as db:
        db.execute("INSERT INTO meta VALUES ('status', '{\"apps\": [], \"machines\": []}')")
        db.execute("INSERT INTO apps (id, name, team, task) VALUES (0, 'see', 'vision', '{}')")
    log = tmp_path / "copies/0-see" / LOG
    log.parent.mkdir(parents=True)
    log.write_text("words")
    broken = list[object]()
    hook = threading.excepthook
    threading.excepthook = broken.append
    one = World(tmp_path)
    served(one)
    before = descriptors(), resident()
    try:
        yield one
        served(one)
        waited(lambda: descriptors() <= before[0], lambda: (descriptors(), before[0]))
        assert resident() - before[1] < SPAN
    finally:
        one.listener.close()
        threading.excepthook = hook
    assert not broken
    assert "Traceback" not in capfd.readouterr().err


def served(world: World) -> None:
    with connected(world.place, "bob", KEYS["bob"]) as channel:
        head, pieces = Client(channel).logs("see", {})
        assert (head, [piece.body for piece in pieces]) == (LogsHead(False, False), [b"words"])


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def flipped(chance: random.Random, body: bytes) -> bytes:
    """Return bytes of which some were changed, left out, doubled or made deep."""
    mutated = bytearray(body)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(mutated) + 1)
        match chance.randrange(5):
            case 0:
                mutated[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                del mutated[at : at + chance.randint(1, 8)]
            case 2:
                mutated[at:at] = mutated[at : at + chance.randint(1, 40)]
            case 3:
                mutated[at:at] = chance.randbytes(chance.randint(1, 20))
            case 4:
                mutated[at:at] = chance.choice([b"\x91", b"\x81\xa1a"]) * chance.choice([3, 2000])
    return bytes(mutated)


def odd(chance: random.Random, value: Any) -> Any:
    """Return a value in which one place holds something that nobody expects there."""
    if chance.random() < 0.25 or not value or not isinstance(value, dict | list):
        return chance.choice(ODD)
    if isinstance(value, list):
        at = chance.randrange(len(value))
        return [odd(chance, item) if place == at else item for place, item in enumerate(value)]
    key = chance.choice(list(value))
    if chance.random() < 0.2:
        return {**value, chance.choice(["", "more", key * 2]): chance.choice(ODD)}
    return {**value, key: odd(chance, value[key])}


def mutated(chance: random.Random, message: object) -> bytes:
    encoded = msgspec.msgpack.encode(message)
    if chance.random() < 0.5:
        return flipped(chance, encoded)
    return msgspec.msgpack.encode(odd(chance, msgspec.msgpack.decode(encoded)))


def frame(body: bytes, size: int | None = None) -> bytes:
    """Return a message as strangers send it: signed with the empty key."""
    return struct.pack(">I", len(body) if size is None else size) + _tag(b"", 0, body) + body


def from_stranger(world: World, chance: random.Random) -> None:
    """A stranger hears at most a challenge, and nothing that needs a key."""
    hello = msgspec.msgpack.encode({"name": chance.choice(["alice", AGENT, "x"]), "nonce": b"n" * 32})
    sent = frame(hello if chance.random() < 0.3 else flipped(chance, hello))
    sent += frame(chance.randbytes(32)) + frame(msgspec.msgpack.encode(chance.choice(ASKS)))
    if chance.random() < 0.5:
        sent = flipped(chance, sent)
    with socket.create_connection(world.place[:2], timeout=TIMEOUT) as sock, suppress(OSError):
        sock.sendall(sent)
        sock.shutdown(socket.SHUT_WR)
        heard = b"".join(iter(lambda: sock.recv(1 << 16), b""))
        assert len(heard) <= CHALLENGE


def from_user(world: World, chance: random.Random) -> None:
    with world.channel(chance.choice(["alice", "bob"])) as channel, suppress(WireError):
        for _ in range(5):
            channel.send_bytes(mutated(chance, chance.choice(ASKS)))
            channel.receive(Any)


def from_agent(world: World, chance: random.Random) -> None:
    with world.channel(AGENT) as channel, suppress(WireError):
        first = chance.choice(AGENTS)
        joins = isinstance(first, Join) and chance.random() < 0.5
        channel.send_bytes(msgspec.msgpack.encode(first) if joins else mutated(chance, first))
        for _ in range(3):
            channel.receive(Any)
            channel.send_bytes(mutated(chance, REPORT))


def from_liar(world: World, chance: random.Random) -> None:
    """Somebody who has the key, and whose frames are broken."""
    with world.channel("bob") as channel, suppress(WireError, OSError):
        body = msgspec.msgpack.encode(chance.choice(ASKS))
        sent = struct.pack(">I", chance.choice([len(body), 0, 1 << 31])) + chance.randbytes(32) + body
        channel.socket.sendall(flipped(chance, sent))
        channel.socket.shutdown(socket.SHUT_WR)
        channel.receive(Any)


Speaker = Callable[[World, random.Random], None]
SPEAKERS = [from_stranger, from_user, from_agent, from_liar]


@pytest.mark.parametrize("speak", SPEAKERS)
def test_whatever_is_said_the_arbiter_goes_on(world: World, speak: Speaker) -> None:
    for seed in range(300):
        speak(world, random.Random(seed))


@pytest.mark.thorough
@pytest.mark.parametrize("speak", SPEAKERS)
def test_whatever_is_said_for_long_the_arbiter_goes_on(world: World, speak: Speaker) -> None:
    for seed in range(1000, 4000):
        speak(world, random.Random(seed))
