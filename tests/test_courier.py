"""The courier hears workers first: it answers what it was told to expect, and passes everything on."""

from __future__ import annotations

import json
import mmap
import select
import socket
from typing import Any

import numpy as np
import pytest

from astrarium import _express
from astrarium.engines.orders import BatchBroken, BatchDone, News, Pong, decode_news, encode

PATIENCE = 20.0


class Post:
    """A courier with one worker and a desk to read calls with."""

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
    said = [Pong(1, 2), done(3), BatchBroken(4, 1, 2, "no")]
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
    post.courier.expect(9, [(post.call(), line, 128 * at, 64) for at, line in enumerate(lines)])
    post.says(done(9))
    assert post.heard() == [(7, done(9))]
    for at, (_, theirs) in enumerate(clients):
        answer = theirs.recv(4096, socket.MSG_DONTWAIT)
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["outputs"][0]["data"] == [at, 0.5]
    moment, unsent = post.courier.collect(9)
    assert moment > 0
    assert unsent == []
    assert post.courier.collect(9) == (0, [])


def test_a_batch_that_broke_or_has_shapes_of_its_own_is_not_answered_here(post: Post) -> None:
    ours, theirs = socket.socketpair()
    for news in (BatchBroken(1, 1, 2, "no"), BatchDone(1, 1, 2, 3, 4, 5, [[((1, 2), 8)]])):
        post.courier.expect(1, [(post.call(), _express.Line(ours.fileno()), 0, 64)])
        post.says(news)
        assert post.heard() == [(7, news)]
        assert post.courier.collect(1) == (0, [])
    with pytest.raises(BlockingIOError):
        theirs.recv(1, socket.MSG_DONTWAIT)


def test_a_closed_connection_takes_nothing_and_hurts_nobody(post: Post) -> None:
    ours, theirs = socket.socketpair()
    line = _express.Line(ours.fileno())
    ours.close()
    theirs.close()
    post.courier.expect(2, [(post.call(), line, 0, 64)])
    post.says(done(2))
    assert post.heard() == [(7, done(2))]
    _, [(place, rest)] = post.courier.collect(2)
    assert place == 0
    assert rest.startswith(b"HTTP/1.1 200")


def test_the_number_of_a_closed_connection_is_not_mistaken_for_another(post: Post) -> None:
    ours, theirs = socket.socketpair()
    number, line = ours.fileno(), _express.Line(ours.fileno())
    ours.close()
    stranger, other = socket.socketpair()
    assert number in (stranger.fileno(), other.fileno())  # the number is used again
    post.courier.expect(3, [(post.call(), line, 0, 64)])
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


def test_a_room_that_is_too_small_is_refused(post: Post) -> None:
    ours, _ = socket.socketpair()
    line = _express.Line(ours.fileno())
    for offset, room in ((0, 4), (1 << 16, 64), ((1 << 16) - 8, 64)):
        with pytest.raises(IndexError):
            post.courier.expect(1, [(post.call(), line, offset, room)])
