"""The early reply thread hears workers first: it answers what it was told to expect, and passes all on."""

from __future__ import annotations

import json
import mmap
import select
import socket
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from astrarium.serving.live.messages import BatchBroken, BatchDone, News, Pong, decode_news, encode

_express: Any = import_module("astrarium._express")

Shapes = list[list[tuple[tuple[int, ...], int]]]

PATIENCE = 20.0


class Post:
    """An early reply thread (native: `Courier`) with one worker and a desk to read calls with."""

    def __init__(self) -> None:
        self.memory = memoryview(mmap.mmap(-1, 1 << 16))
        self.desk = _express.Desk(self.memory, 4096, 4096)
        self.desk.serve(0, "m", "1", [("A", "FP32", [2])], [("X", "FP32", [2])], 4)
        self.courier = _express.Courier(self.memory)
        self.ours, self.worker = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.courier.watch(7, self.ours.fileno())

    def call(self) -> Any:
        body = json.dumps({"inputs": [{"name": "A", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]})
        head = f"POST /v2/models/m/infer HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
        return self.desk.read((head + body).encode())

    def says(self, news: News) -> None:
        self.worker.send(encode(news))

    def heard(self) -> list[tuple[int, News]]:
        """What was passed on, once there is something."""
        assert select.select([self.courier.bell()], [], [], PATIENCE)[0], "nothing was heard"
        return [(worker, decode_news(packet)) for worker, packet in self.courier.packets()]


@pytest.fixture
def post() -> Any:
    made = Post()
    yield made
    made.courier.stop()


def done(run: int) -> BatchDone:
    return BatchDone(run, 1 << 40, 2, 300, 70_000, 5)


def test_everything_is_passed_on_in_order(post: Post) -> None:
    said: list[News] = [Pong(1, 2), done(3), BatchBroken(4, 1, 2, "no")]
    for news in said:
        post.says(news)
    heard: list[tuple[int, News]] = []
    while len(heard) < 3:
        heard += post.heard()
    assert heard == [(7, news) for news in said]


def test_expected_answers_are_sent_before_the_news_is_passed_on(post: Post) -> None:
    clients = [socket.socketpair() for _ in range(2)]
    for at, (ours, _) in enumerate(clients):
        post.memory[128 * at : 128 * at + 8] = np.array([at, 0.5], "<f4").tobytes()
        assert ours.fileno() >= 0
    lines = [_express.Line(ours.fileno()) for ours, _ in clients]
    post.courier.expect(9, [(post.call(), line, 128 * at, 64, at) for at, line in enumerate(lines)])
    post.says(done(9))
    assert post.heard() == [(7, done(9))]
    for at, (_, theirs) in enumerate(clients):
        answer = theirs.recv(4096, socket.MSG_DONTWAIT)
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["outputs"][0]["data"] == [at, 0.5]
    moment, places, unsent = post.courier.collect(9)
    assert moment > 0
    assert (places, unsent) == ([0, 1], [])
    assert post.courier.collect(9) == (0, [], [])


def test_a_batch_that_broke_is_not_answered(post: Post) -> None:
    ours, theirs = socket.socketpair()
    news = BatchBroken(1, 1, 2, "no")
    post.courier.expect(1, [(post.call(), _express.Line(ours.fileno()), 0, 64, 0)])
    post.says(news)
    assert post.heard() == [(7, news)]
    assert post.courier.collect(1) == (0, [], [])
    with pytest.raises(BlockingIOError):
        theirs.recv(1, socket.MSG_DONTWAIT)


def test_shapes_that_a_batch_brings_along_are_those_of_its_answers(post: Post) -> None:
    pairs = [socket.socketpair() for _ in range(2)]
    lines = [_express.Line(ours.fileno()) for ours, _ in pairs]
    post.memory[:1200] = np.arange(300, dtype="<f4").tobytes()
    post.courier.expect(1, [(post.call(), line, 0, 1216, 2 * at) for at, line in enumerate(lines)])
    sizes = [1, 7, 300]
    post.says(BatchDone(1, 1, 2, 3, 4, 5, [[((1, size), 4 * size)] for size in sizes]))
    post.heard()
    for (_, theirs), size in zip(pairs, (1, 300), strict=True):
        [output] = json.loads(theirs.recv(1 << 16).partition(b"\r\n\r\n")[2])["outputs"]
        assert (output["shape"], output["data"]) == ([1, size], [float(one) for one in range(size)])
    assert post.courier.collect(1)[1:] == ([0, 1], [])


def test_answers_that_cannot_be_where_they_are_said_to_be_are_left_to_others(post: Post) -> None:
    ours, theirs = socket.socketpair()
    line, call = _express.Line(ours.fileno()), post.call()
    rooms = [(0, 4, 0), (1 << 16, 64, 0), ((1 << 16) - 8, 64, 0), (0, 64, 1)]
    post.courier.expect(1, [(call, line, *room) for room in rooms])
    post.says(BatchDone(1, 1, 2, 3, 4, 5, [[((1, 2), 8)]]))
    post.heard()
    assert post.courier.collect(1)[1:] == ([], [])
    wrong: list[Shapes] = [[[((1, 99), 396)]], [[]], [[((1, 2), 8), ((1, 2), 8)]]]
    for shapes in wrong:
        post.courier.expect(2, [(call, line, 0, 64, 0)])
        post.says(BatchDone(2, 1, 2, 3, 4, 5, shapes))
        post.heard()
        assert post.courier.collect(2)[1:] == ([], [])
    with pytest.raises(BlockingIOError):
        theirs.recv(1, socket.MSG_DONTWAIT)


def test_a_closed_connection_takes_nothing_and_hurts_nobody(post: Post) -> None:
    ours, theirs = socket.socketpair()
    line = _express.Line(ours.fileno())
    ours.close()
    theirs.close()
    post.courier.expect(2, [(post.call(), line, 0, 64, 0)])
    post.says(done(2))
    assert post.heard() == [(7, done(2))]
    _, _, [(place, rest)] = post.courier.collect(2)
    assert place == 0
    assert rest.startswith(b"HTTP/1.1 200")


def test_the_number_of_a_closed_connection_is_not_mistaken_for_another(post: Post) -> None:
    ours, theirs = socket.socketpair()
    number, line = ours.fileno(), _express.Line(ours.fileno())
    ours.close()
    stranger, other = socket.socketpair()
    assert number in (stranger.fileno(), other.fileno())  # the number is used again
    post.courier.expect(3, [(post.call(), line, 0, 64, 0)])
    post.says(done(3))
    post.heard()
    assert theirs.recv(4096, socket.MSG_DONTWAIT).startswith(b"HTTP/1.1 200")
    for end in (stranger, other):
        with pytest.raises(BlockingIOError):
            end.recv(1, socket.MSG_DONTWAIT)


def test_the_last_words_of_a_worker_are_heard(post: Post) -> None:
    post.says(done(4))
    post.worker.close()
    post.courier.forget(7)
    assert post.heard() == [(7, done(4))]
    post.courier.forget(7)  # nobody by that number any more


def test_after_the_end_nothing_is_heard_but_what_was_can_be_collected(post: Post) -> None:
    post.says(done(5))
    assert select.select([post.courier.bell()], [], [], PATIENCE)[0]
    post.courier.stop()
    post.says(done(6))
    assert post.heard() == [(7, done(5))]
