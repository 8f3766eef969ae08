"""A worker alone, spoken to over its socket: what it hears too late, or never expected, does not end it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from astrarium.serving.live.backends.contract import ModelFiles, Place
from astrarium.serving.live.messages import (
    BatchBroken,
    BatchMember,
    CancelBatch,
    LoadModel,
    ModelLoaded,
    ModelLoading,
    ModelRefused,
    News,
    Order,
    Ping,
    Pong,
    RunBatch,
    Stop,
    WorkerUp,
    decode_news,
    encode,
    fingerprint,
    packed,
    plain_files,
)
from astrarium.serving.live.shared_memory import SharedMemory
from astrarium.serving.live.worker.worker import Worker
from tests.serving.live.world import FILES


class Line:
    """The cluster level's end."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def say(self, order: Order) -> None:
        self._end.send(encode(order))

    def hear(self) -> News:
        news: News = decode_news(self._end.recv(1 << 18))
        return news


@pytest.fixture
def line() -> Iterator[Line]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(30)
    worker = threading.Thread(target=Worker(theirs, SharedMemory.create(1 << 16), Place()).serve)
    worker.start()
    line = Line(ours)
    assert isinstance(line.hear(), WorkerUp)
    yield line
    line.say(Stop())
    worker.join(30)
    assert not worker.is_alive()


def test_an_order_to_stop_a_batch_that_has_ended_is_passed_over(line: Line) -> None:
    line.say(CancelBatch(7))
    line.say(Ping(1))
    assert isinstance(line.hear(), Pong)


def test_a_batch_for_a_model_that_is_not_there_is_broken_and_says_so(line: Line) -> None:
    line.say(RunBatch(3, 5, packed([BatchMember(0, 1, 0, 0, 0)])))
    news = line.hear()
    assert isinstance(news, BatchBroken)
    assert "model 5 is not loaded" in news.error


def test_a_model_that_cannot_be_loaded_is_refused_with_the_reason(line: Line) -> None:
    files = {
        "name": "m",
        "backend": "onyx",
        "options": {},
        "inputs": [],
        "outputs": [],
        "max_batch": 1,
        "base": "",
    }
    line.say(LoadModel(0, files, [1]))
    assert line.hear() == ModelLoading(0)
    news = line.hear()
    assert isinstance(news, ModelRefused)
    assert "did you mean 'onnx'?" in news.error


def load(line: Line, files: ModelFiles, tensors: int = 0) -> News:
    line.say(LoadModel(0, plain_files(files), [1], tensors))
    assert line.hear() == ModelLoading(0)
    return line.hear()


def test_a_model_with_other_tensors_is_not_loaded_over_the_one_that_serves(line: Line) -> None:
    loaded = load(line, FILES)
    assert isinstance(loaded, ModelLoaded)
    served = fingerprint(loaded.inputs, loaded.outputs)
    assert isinstance(load(line, FILES, served), ModelLoaded)
    for other in (
        replace(FILES, inputs=(replace(FILES.inputs[0], shape=(5,)),)),
        replace(FILES, inputs=(replace(FILES.inputs[0], values=(0, 1)),)),
        replace(FILES, outputs=(replace(FILES.outputs[0], name="OTHER"),)),
    ):
        refused = load(line, other, served)
        assert isinstance(refused, ModelRefused)
        assert "unload the model first" in refused.error
    assert isinstance(load(line, other), ModelLoaded)
