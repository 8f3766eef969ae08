"""No user takes what others need: connections, messages and sizes are limited for each."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from astrarium.cluster.live import limits
from astrarium.cluster.live.access import AccessSection
from astrarium.cluster.live.backends.hosts.messages import AGENT
from astrarium.cluster.live.service.client import Client
from astrarium.cluster.live.service.service import Service
from astrarium.cluster.live.service.state_folder import StateFolder
from astrarium.cluster.live.service.unix_socket import unix_client, unix_listener
from astrarium.cluster.live.store import Store
from astrarium.cluster.live.watching.history import PastQuery
from astrarium.cluster.live.wire.connections import (
    ConnectionLimits,
    Connections,
    Pool,
)
from astrarium.cluster.live.wire.handshake import Place, connected
from astrarium.cluster.live.wire.listener import Admission, Listener, tcp_listener
from astrarium.core.errors import AstrariumError, InputError
from tests.support.cluster.hosts import waited
from tests.support.cluster.virtual_cluster import VirtualCluster

KEYS = {name: name.encode() * 16 for name in ("alice", "bob", "carol", AGENT)}
FEW = ConnectionLimits(strangers=8, user=3, users=6, operators=2, agents=4)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    Store(tmp_path).close()
    return tmp_path


class Arbiter:
    """What answers for an arbiter, with few places."""

    def __init__(self, home: Path) -> None:
        access = AccessSection(("alice",), {"vision": ("bob", "carol")})
        self.service = Service(home, access)
        self.known = Connections(FEW, self.service.is_operator)
        self.agents = threading.Semaphore(0)
        admission = Admission(self._pool, self.service.refuse, FEW.strangers)
        here = Place("127.0.0.1", 0)
        self.listener = tcp_listener(here, KEYS.get, self._serve, admission=admission)
        self.place = Place("127.0.0.1", self.listener.address[1])

    def _pool(self, name: str) -> Pool:
        return self.known.agents if name == AGENT else self.known.of(name)

    def _serve(self, channel: Any, name: str) -> None:
        if name == AGENT:
            self.agents.release()
            channel.receive(str)
        else:
            self.service.serve(channel, name)

    def client(self, user: str) -> Client:
        return Client(connected(self.place, user, KEYS[user]))

    def stranger(self) -> socket.socket:
        return socket.create_connection(self.place[:2], timeout=60)


@pytest.fixture
def arbiter(home: Path) -> Iterator[Arbiter]:
    one = Arbiter(home)
    yield one
    one.listener.close()


def answered(client: Client) -> Client:
    assert client.past("events", PastQuery()) == []
    return client


def words_of(do: Callable[[], object]) -> str:
    with pytest.raises(AstrariumError) as error:
        do()
    return str(error.value)


def test_a_user_at_the_limit_is_told_so_and_harms_nobody(arbiter: Arbiter) -> None:
    mine = [answered(arbiter.client("bob")) for _ in range(FEW.user)]
    refusal = words_of(lambda: answered(arbiter.client("bob")))
    assert refusal == "bob has 3 connections open, and may have 3: close some"
    answered(arbiter.client("carol"))
    answered(arbiter.client("alice"))
    mine[0]._channel.close()
    waited(lambda: arbiter.known.users._sizes["bob"] < FEW.user)
    answered(arbiter.client("bob"))


def test_operators_always_get_in(arbiter: Arbiter) -> None:
    others = [answered(arbiter.client(user)) for user in ("bob", "carol") for _ in range(FEW.user)]
    mine = [answered(arbiter.client("alice")) for _ in range(3 * FEW.operators)]
    answered(mine[-1])
    assert len(arbiter.known.operators) == FEW.operators
    for other in others:
        answered(other)


def test_agents_are_not_bound_by_the_limit_of_a_user(arbiter: Arbiter) -> None:
    channels = [connected(arbiter.place, AGENT, KEYS[AGENT]) for _ in range(FEW.agents)]
    for _ in channels:
        assert arbiter.agents.acquire(timeout=60)
    with connected(arbiter.place, AGENT, KEYS[AGENT]) as more:
        more.send("join")
        assert waited(more.gone)
    answered(arbiter.client("bob"))


def test_who_has_a_key_is_served_however_many_strangers_there_are(arbiter: Arbiter) -> None:
    strangers = [arbiter.stranger() for _ in range(5 * FEW.strangers)]
    for user in ("bob", "carol", "alice") * 2:
        answered(arbiter.client(user))
        strangers += [arbiter.stranger() for _ in range(FEW.strangers - 1)]
    assert strangers[0].recv(1) == b""  # the oldest has given way
    for stranger in strangers:
        stranger.close()


def test_who_asks_nothing_is_left(arbiter: Arbiter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("astrarium.cluster.live.service.service.IDLE", 0.0)
    client = arbiter.client("bob")
    client._channel.socket.sendall(b"\0")  # and who asks slowly
    waited(client._channel.gone)
    waited(lambda: len(arbiter.known.users) == 0)


def test_nobody_waits_for_the_answer_of_who_has_left(arbiter: Arbiter) -> None:
    client = arbiter.client("bob")
    body = {"name": "a", "command": "true", "length": "1s"}
    thread = threading.Thread(target=lambda: words_of(lambda: client.send("app", body, 600.0)))
    thread.start()
    waited(lambda: Store(arbiter.service._home).inbox.unread())
    client._channel.close()
    thread.join(60)
    waited(lambda: len(arbiter.known.users) == 0)


def test_users_of_the_machine_have_the_same_limit(home: Path) -> None:
    service = Service(home, AccessSection())
    known = Connections(FEW)
    listener = unix_listener(home, service.serve, True, Admission(known.of, service.refuse, FEW.strangers))
    try:
        clients = [unix_client(home) for _ in range(FEW.user)]
        waited(lambda: len(known.users) == FEW.user)
        more = unix_client(home)
        assert more is not None
        assert "connections open, and may have 3" in words_of(more.status)
        assert all(clients)
    finally:
        listener.close()


def test_a_listener_outlives_a_lack_of_descriptors(arbiter: Arbiter, monkeypatch: pytest.MonkeyPatch) -> None:
    accept = socket.socket.accept
    failed = list[float]()

    def failing(self: socket.socket) -> Any:
        if self is arbiter.listener._socket and len(failed) < 3:
            failed.append(time.monotonic())
            raise OSError(24, "too many open files")
        return accept(self)

    stranger = arbiter.stranger()
    waited(lambda: len(arbiter.listener._strangers) == 1)
    monkeypatch.setattr(socket.socket, "accept", failing)
    arbiter.stranger().close()  # it is accepted by the call that waits already
    other = arbiter.client("bob")
    answered(other)
    assert failed[2] - failed[0] >= 0.19  # it does not spin
    assert stranger.recv(1) == b""  # a stranger has made room


def test_a_listener_outlives_a_lack_of_threads(arbiter: Arbiter, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as broken:
        broken.setattr(threading.Thread, "start", none)
        assert arbiter.stranger().recv(1) == b""
    answered(arbiter.client("bob"))


def test_a_fault_of_ours_ends_one_connection_with_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    def serve(channel: Any, name: str) -> None:
        channel.receive(str)
        raise ZeroDivisionError("ours")

    listener: Listener = tcp_listener(Place("127.0.0.1", 0), KEYS.get, serve)
    with connected(Place("127.0.0.1", listener.address[1]), "bob", KEYS["bob"]) as channel:
        channel.send("x")
        waited(channel.gone)
    listener.close()
    waited(lambda: (printed := capfd.readouterr().err) and printed == ERROR)


ERROR = "the connection of bob was ended: ZeroDivisionError('ours')\n"


def test_messages_of_one_user_that_wait_are_limited(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("astrarium.cluster.live.inbox.MOST_UNREAD", 3)
    bob, carol, folder = (StateFolder(home, user) for user in ("bob", "carol", ""))
    for _ in range(3):
        bob.send("withdraw", {"app": "a"}, 0.0)
    with pytest.raises(InputError, match=r"user: expected at most 3 messages of a user .*got 'bob'"):
        bob.send("withdraw", {"app": "a"}, 0.0)
    carol.send("withdraw", {"app": "a"}, 0.0)
    for _ in range(4):
        folder.send("withdraw", {"app": "a"}, 0.0)  # who may write the folder may do all


def test_a_turn_takes_some_messages_of_everybody(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("astrarium.cluster.live.inbox.TURN", 2)
    for user in ("bob", "bob", "bob", "carol"):
        StateFolder(home, user).send("withdraw", {"app": "a"}, 0.0)
    store = Store(home)
    assert [(message.id, message.owner) for message in store.inbox.unread()] == [
        (1, "bob"),
        (2, "bob"),
        (4, "carol"),
    ]
    store.close()


@pytest.mark.parametrize("deep", [49, 50, 300])
def test_what_is_nested_too_deeply_is_refused_before_it_is_stored(arbiter: Arbiter, deep: int) -> None:
    """A name of lists in each other once ended the arbiter, and every one after it."""
    name: Any = "a"
    for _ in range(deep):
        name = [name]
    body = {"name": name, "length": "1s", "command": "true"}
    client = arbiter.client("bob")
    if deep < limits.MOST_DEPTH:
        client.send("app", body, 0.0)
    else:
        refusal = words_of(lambda: client.send("app", body, 0.0))
        assert refusal == "app: expected at most 50 lists and mappings in each other"
    assert StateFolder(arbiter.service._home).send("withdraw", {"app": "a"}, 0.0) is None
    assert all(not message.fault for message in Store(arbiter.service._home).inbox.unread())


def test_a_message_that_cannot_be_read_is_refused_and_the_others_are_not(tmp_path: Path) -> None:
    cluster = VirtualCluster(tmp_path)
    before = cluster.submit("before")
    after = cluster.submit("after")
    cluster.arbiter.store._db.execute("UPDATE inbox SET body = ? WHERE id = ?", ("[" * 5000, before))
    cluster.go(1)
    assert "message: expected one that can be read" in str(cluster.arbiter.store.inbox.answer(before))
    assert cluster.arbiter.store.inbox.answer(after) == "accepted"


def test_what_was_answered_takes_no_room(tmp_path: Path) -> None:
    cluster = VirtualCluster(tmp_path)
    first = cluster.submit("first", command="x" * 10_000)
    cluster.go(1)
    [row] = cluster.rows("SELECT body, answer FROM inbox")
    assert (row["body"], row["answer"]) == ("", "accepted")
    cluster.clock.pass_seconds(3601)
    cluster.submit("second")
    assert cluster.arbiter.store.inbox.answer(first) is None
    assert cluster.count("inbox") == 1


def test_a_user_leaves_so_many_bytes_in_an_hour(arbiter: Arbiter) -> None:
    clock = [0.0]
    arbiter.service._hourly = limits.Hourly("bytes of messages", 3 * limits.OVERHEAD, lambda: clock[0])
    bob, carol, alice = (arbiter.client(user) for user in ("bob", "carol", "alice"))

    def leave(client: Client) -> None:
        client.send("app", {"name": "a", "length": "1s", "command": "true", "team": "vision"}, 0.0)

    leave(bob)
    leave(bob)
    assert "at most 3072 bytes of messages of a user in an hour: wait 3600 s" in words_of(lambda: leave(bob))
    leave(carol)
    for _ in range(5):
        leave(alice)  # an operator
    clock[0] = 3600.0
    leave(bob)


def test_one_question_of_a_user_is_answered_at_a_time(arbiter: Arbiter) -> None:
    """However many connections one user has, others wait for one question at most."""
    running = set[int]()
    most = list[int]()
    lock = threading.Lock()

    def slow(folder: Any, who: Any, kind: Any, body: Any) -> list[Any]:
        with lock:
            running.add(threading.get_ident())
            most.append(len(running))
        time.sleep(0.05)
        running.discard(threading.get_ident())
        return []

    arbiter.service._past = slow  # type: ignore[method-assign]
    clients = [arbiter.client(user) for user in ("bob", "bob", "bob", "carol")]
    threads = [threading.Thread(target=answered, args=[client]) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(most) == 4
    assert max(most) <= 2  # one of bob's, one of carol's
    waited(lambda: not arbiter.service._turns._asking)


def test_large_questions_are_not_read(arbiter: Arbiter) -> None:
    """A question of empty mappings takes a hundred times its size in memory."""
    client = arbiter.client("bob")
    refusal = words_of(lambda: client._ask("status-of-all", {"a": [{}] * 900_000}))
    assert refusal.startswith("kind: expected app, withdraw")
    assert "at most 131072 bytes" in words_of(lambda: client._ask("events", {"a": [{}] * 900_000}))
    assert "a mapping of fields" in words_of(lambda: client._ask("logs", {"have": [{}] * 900_000}))
    key = "\x1b" * 50_000
    assert len(words_of(lambda: client._ask("events", {key: 1}))) <= limits.LONGEST_ANSWER
