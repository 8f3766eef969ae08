"""Texts that a network thread reads: they wait for tokens, and end in exactly one way, whatever happens."""

from __future__ import annotations

import json
import mmap
import socket
import struct
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from astrarium.core.quantities import SECOND
from astrarium.server.protocol.network_threads import native_specs
from astrarium.serving.live.tensors import TensorSpec
from tests.support.server.fakes import HOUR
from tests.support.server.plain_calls import request
from tests.support.server.shared_objects import shared_object

_front: Any = import_module("astrarium._front")
_testing: Any = import_module("astrarium._testing")

MEMORY = 1 << 20
TEXT = TensorSpec("TEXT", "BYTES", (1,))
TOKENS = (TensorSpec("ids", "INT32", (-1,)), TensorSpec("mask", "INT64", (-1,)))
OUTPUT = TensorSpec("OUT", "FP32", (1,))
ANSWER = [[1, 1]], 4


class Scene:
    """A network thread, a scheduler by hand, and nobody who tokenizes but the test."""

    def __init__(self) -> None:
        self.memory = memoryview(mmap.mmap(-1, MEMORY))
        self.exchange = _front.Exchange(self.memory, models=2, most_open=100, origins=2)
        self.loopback = _testing.Loopback(self.exchange)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.network = _front.Network(
                self.exchange,
                [listener.fileno()],
                head_bytes=4096,
                body_bytes=1 << 20,
                held_bytes=1 << 20,
                request_ns=HOUR,
                keep_alive_ns=HOUR,
                connections=0,
                keys=[],
                too_slow=b"",
                no_descriptor=b"",
            )
            self._address = listener.getsockname()
        self.serve()
        self.network.start()

    def serve(
        self,
        tokenizer: int = 7,
        tokens: tuple[TensorSpec, ...] = TOKENS,
        outputs: tuple[TensorSpec, ...] = (OUTPUT,),
        objective: int = HOUR,
    ) -> None:
        pair = TEXT, TensorSpec("OTHER", "BYTES", ())
        for index, (name, inputs) in enumerate({"m": (TEXT,), "pair": pair}.items()):
            tensors = native_specs(inputs), native_specs(outputs)
            tokenized = tokenizer, native_specs(tokens)
            self.network.serve(index, name, "1", *tensors, 4, objective, {}, [], tokenized=tokenized)

    def send(self, *texts: Any, model: str = "m", **parameters: Any) -> socket.socket:
        data = [{"name": "TEXT", "datatype": "BYTES", "shape": [len(texts), 1], "data": list(texts)}]
        return self.send_body({"inputs": data, "parameters": parameters}, model)

    def send_body(self, body: Any, model: str = "m") -> socket.socket:
        line = socket.create_connection(self._address, timeout=60)
        line.sendall(request(json.dumps(body).encode(), model))
        return line

    def take(self, now: int | None = None) -> Any:
        """The texts that wait, as soon as there are any."""
        return until(lambda: self.exchange.texts.try_take(time.monotonic_ns() if now is None else now))

    def taken(self) -> Any:
        """The call that the scheduler has."""
        [call] = until(self.loopback.pop)
        return call

    def why_long(self) -> str:
        [(_, connection, _, why, *_)] = until(self.network.passed)
        self.network.abort(connection)
        return str(why)

    def is_quiet(self) -> bool:
        self.network.synchronize()
        exchange = self.exchange
        return bool(
            exchange.astray(0, 0) == 0 and exchange.admission.open() == 0 and exchange.arena.used == 0
        )


def texts_of(batch: Any) -> list[tuple[bytes, ...]]:
    return list(batch.texts(most=1 << 20, from_end=False))


def until(find: Callable[[], Any]) -> Any:
    for _ in range(60_000):
        if found := find():
            return found
        time.sleep(0.001)
    raise AssertionError("nothing came")


def answer(line: socket.socket) -> tuple[int, Any]:
    """The status and the body that a client has, which then goes."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += line.recv(1 << 16)
    head, _, body = data.partition(b"\r\n\r\n")
    size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    while len(body) < size:
        body += line.recv(1 << 16)
    line.close()
    return int(head.split()[1]), json.loads(body)


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    assert until(scene.is_quiet), "a call is in no book, or its memory is kept"
    scene.network.stop()


def test_a_text_gets_its_tokens_and_then_goes_on_as_any_call(scene: Scene) -> None:
    line = scene.send("größer", id="x")
    batch = scene.take()
    assert (batch.model, batch.tokenizer, texts_of(batch)) == (0, 7, [("größer".encode(),)])
    assert batch.own() == []
    assert scene.loopback.pop() == []
    assert scene.exchange.astray(0, 0) == 0  # while it waits for tokens
    batch.give([[[5, 6, 7], [1, 1, 1]]])
    number, model, rows, _, _, _, block, _, _, shapes, *_ = scene.taken()
    assert (model, rows) == (0, 1)
    assert shapes == [([1, 3], 12), ([1, 3], 24)]
    assert np.frombuffer(scene.memory, np.int32, 3, block).tolist() == [5, 6, 7]
    assert np.frombuffer(scene.memory, np.int64, 3, block + 64).tolist() == [1, 1, 1]
    assert bytes(scene.memory[block + 12 : block + 64]) == bytes(52)
    scene.loopback.end(number, shapes=[[]])
    status, body = answer(line)
    assert (status, [output["name"] for output in body["outputs"]]) == (200, ["OUT"])


def test_a_pair_is_one_text(scene: Scene) -> None:
    inputs = [
        {"name": "OTHER", "datatype": "BYTES", "shape": [1], "data": ["b"]},
        {"name": "TEXT", "datatype": "BYTES", "shape": [1, 1], "data": ["a"]},
    ]
    line = scene.send_body({"inputs": inputs}, "pair")
    batch = scene.take()
    assert (batch.model, texts_of(batch)) == (1, [(b"a", b"b")])
    batch.give([(0, "no")])
    assert answer(line)[0] == 500


def test_inputs_of_one_size_need_no_shapes(scene: Scene) -> None:
    scene.serve(tokenizer=8, tokens=(TensorSpec("ids", "INT8", (2,)),))
    line = scene.send("a")
    scene.take().give([[[3, -4]]])
    number, _, _, _, _, _, block, *_ = scene.taken()
    assert np.frombuffer(scene.memory, np.int8, 2, block).tolist() == [3, -4]
    scene.loopback.end(number, shapes=[[]])
    assert answer(line)[0] == 200


@pytest.mark.parametrize(
    ("fault", "status", "error"),
    [
        (0, 500, "model m failed: it is odd"),
        (1, 400, "model m: it is odd"),
        (2, 413, "model m: it is odd"),
    ],
)
def test_whose_fault_it_is_shows(scene: Scene, fault: int, status: int, error: str) -> None:
    line = scene.send("odd")
    scene.take().give([(fault, "it is odd")])
    assert answer(line) == (status, {"error": error})
    assert until(scene.is_quiet)
    tally = scene.exchange.tally(0)
    assert (tally[0], tally[3]) == (1, {("failed", "inputs"): 1})


def test_one_that_is_late_by_its_turn_costs_no_tokens(scene: Scene) -> None:
    line = scene.send("late")
    until(lambda: scene.exchange.texts.open(0))
    batch = scene.take(now=time.monotonic_ns() + 2 * HOUR)
    assert (texts_of(batch), batch.late) == ([], [])
    assert answer(line) == (504, {"error": "model m: the deadline can no longer be met"})


def test_the_queue_closes_and_nobody_is_left_without_an_answer(scene: Scene) -> None:
    under_way = scene.send("a")
    batch = scene.take()
    waiting = scene.send("b")
    until(lambda: scene.exchange.texts.open(0))
    scene.exchange.texts.close()
    assert answer(waiting)[0] == 503
    batch.give([[[1], [1]]])
    assert answer(under_way)[0] == 503
    status, body = answer(scene.send("c"))
    assert (status, body["error"]) == (503, "model m: the server stopped before it came to this call")


def test_a_client_that_goes_leaves_nothing_behind(scene: Scene) -> None:
    line = scene.send("a")
    batch = scene.take()
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # it closes with a reset
    line.close()
    until(lambda: scene.network.connections() == 0)
    batch.give([[[1], [1]]])
    scene.loopback.end(scene.taken()[0], shapes=[[]])


def test_a_batch_that_nobody_gives_back_fails_its_calls(scene: Scene) -> None:
    line = scene.send("a")
    scene.take()
    assert answer(line) == (500, {"error": "model m failed: its text could not be tokenized"})
    scene.send("b").close()
    scene.take().give([(1, "")])


def test_without_memory_for_its_tokens_a_call_is_refused(scene: Scene) -> None:
    line = scene.send("a")
    batch = scene.take()
    block = scene.exchange.arena.take(MEMORY)
    batch.give([[[1], [1]]])
    status, body = answer(line)
    expected = "overloaded: model m: there is no shared memory left for its inputs"
    assert (status, body["error"]) == (429, expected)
    scene.exchange.arena.give_back(block)


def test_who_would_wait_too_long_for_tokens_is_refused(scene: Scene) -> None:
    first = scene.send("a")
    until(lambda: scene.exchange.texts.open(0))
    time.sleep(0.02)
    status, body = answer(scene.send("b", timeout=22_000))
    expected = "overloaded: 1 texts wait for the tokenizer of model m, more than it can take in time"
    assert (status, body["error"]) == (429, expected)
    scene.take().give([(1, "")])
    assert answer(first)[0] == 400


def test_what_somebody_else_has_to_look_at_goes_the_long_way(scene: Scene) -> None:
    line = scene.send("\ud800")
    assert scene.why_long() == "body"
    line.close()


def send_bytes(scene: Scene, text: bytes) -> socket.socket:
    data = {"name": "TEXT", "datatype": "BYTES", "shape": [1, 1]}
    size = 4 + len(text)
    head = json.dumps({"inputs": [data | {"parameters": {"binary_data_size": size}}]}).encode()
    line = socket.create_connection(scene._address, timeout=60)
    body = head + len(text).to_bytes(4, "little") + text
    line.sendall(request(body, "m", f"Inference-Header-Content-Length: {len(head)}"))
    return line


def test_the_tokenizer_says_what_is_no_text(scene: Scene) -> None:
    line = send_bytes(scene, b"\xff")
    batch = scene.take()
    assert texts_of(batch) == [(b"\xff",)]
    batch.give([(1, "it is not UTF-8")])
    assert answer(line) == (400, {"error": "model m: it is not UTF-8"})


def test_of_a_long_text_a_part_is_looked_at(scene: Scene) -> None:
    lines = [send_bytes(scene, b"0123456789"), send_bytes(scene, b"012")]
    until(lambda: scene.exchange.texts.open(0) == 2)
    batch = scene.take()
    assert batch.size == 2
    assert sorted(batch.texts(most=3, from_end=False)) == [(b"012",), (b"0123",)]
    assert sorted(batch.texts(most=3, from_end=True)) == [(b"012",), (b"6789",)]
    batch.give([(1, "")] * 2)
    assert [answer(line)[0] for line in lines] == [400, 400]


def test_a_model_that_is_loaded_anew_answers_no_text_that_was_read_for_another(scene: Scene) -> None:
    before = scene.send("a")
    batch = scene.take()
    scene.serve(tokenizer=8)
    scene.network.synchronize()
    batch.give([[[1], [1]]])
    status, body = answer(before)
    expected = "model m: it was loaded anew while the text waited for its tokens"
    assert (status, body["error"]) == (503, expected)
    scene.network.withhold("m", "unloading")
    scene.serve(tokenizer=8)
    during = scene.send("a")
    batch = scene.take()
    scene.network.withhold("m", "unloading")
    batch.give([[[1], [1]]])
    scene.loopback.end(scene.taken()[0], shapes=[[]])
    assert answer(during)[0] == 200


def test_one_model_leaves_places_for_the_texts_of_others(scene: Scene) -> None:
    most = MEMORY // 4
    lines = [send_bytes(scene, b"a" * (most // 2 + 1))]
    batch = scene.take()
    status, body = answer(scene.send("b"))
    expected = "overloaded: 1 texts wait for the tokenizer of model m, more than it can take in time"
    assert (status, body["error"]) == (429, expected)
    lines.append(send_pair(scene, "c", "d"))
    other = scene.take()
    batch.give([(1, "")])
    other.give([(1, "")])
    assert [answer(line)[0] for line in lines] == [400, 400]


def send_pair(scene: Scene, *texts: str) -> socket.socket:
    shapes = [("TEXT", [1, 1]), ("OTHER", [1])]
    inputs = [
        {"name": name, "datatype": "BYTES", "shape": shape, "data": [text]}
        for (name, shape), text in zip(shapes, texts, strict=True)
    ]
    return scene.send_body({"inputs": inputs}, "pair")


def test_what_a_refused_call_named_is_not_the_next_ones(scene: Scene) -> None:
    """Its region once stayed with what it was read into, and took the answer of somebody else."""
    tensors = native_specs([TensorSpec("X", "FP32", (1,))]), native_specs([OUTPUT])
    scene.network.serve(1, "plain", "1", *tensors, 4, HOUR, {}, [])
    scene.loopback.plan([(HOUR, [0, SECOND, 1 << 60])] * 2, 1)
    scene.exchange.regions.allow(1 << 10, False)
    with shared_object(bytes(64)) as shared:
        assert scene.exchange.regions.add(-1, -1, "theirs", shared.key, 0, 64) == ("", "")
        place = {"shared_memory_region": "theirs", "shared_memory_byte_size": 64}
        inputs = [{"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [1]}]
        outputs = [{"name": "OUT", "parameters": place}]
        refused = {"inputs": inputs, "outputs": outputs, "parameters": {"timeout": 1}}
        for texts in (["a"], ["a", "b"]):
            assert answer(scene.send_body(refused, "plain"))[0] == 504
            line, calls = several(scene, *texts)
            for call in calls:
                scene.memory[call[7] : call[7] + 4] = np.float32(7).tobytes()
                scene.loopback.end(call[0], shapes=[[]])
            status, body = answer(line)
            assert (status, body["outputs"][0]["data"]) == (200, [7] * len(texts))
        assert shared.floats() == [0] * 16


def test_each_batch_is_for_one_tokenizer(scene: Scene) -> None:
    lines = [scene.send("a")]
    until(lambda: scene.exchange.texts.open(0) == 1)
    scene.serve(tokenizer=8)
    lines.append(scene.send("b"))
    until(lambda: scene.exchange.texts.open(0) == 2)
    for tokenizer in (7, 8):
        batch = scene.take()
        assert batch.tokenizer == tokenizer
        batch.give([(1, "")])
    assert [answer(line)[0] for line in lines] == [400, 400]


def test_models_have_their_turns_and_a_slow_one_holds_up_itself_alone(scene: Scene) -> None:
    lines = [scene.send("a")]
    slow = scene.take()
    lines.append(scene.send("b"))
    until(lambda: scene.exchange.texts.open(0) == 2)
    assert scene.exchange.texts.try_take(time.monotonic_ns()) is None
    lines.append(send_pair(scene, "c", "d"))
    other = scene.take()
    assert other.model == 1
    for batch in (slow, other):
        batch.give([(1, "")])
    scene.take().give([(1, "")])
    assert [answer(line)[0] for line in lines] == [400] * 3


def several(scene: Scene, *texts: str, **parameters: Any) -> tuple[socket.socket, list[Any]]:
    """A client of a call with several texts, and what the scheduler has of it, by row."""
    line = scene.send(*texts, **parameters)
    until(lambda: scene.exchange.texts.open(0) == len(texts))
    batch = scene.take()
    assert texts_of(batch) == [(text.encode(),) for text in texts]
    batch.give([[list(range(len(text))), [1] * len(text)] for text in texts])
    calls: list[Any] = []
    while len(calls) < len(texts):
        calls.extend(until(scene.loopback.pop))
    return line, calls


def test_texts_of_one_call_are_each_as_long_as_they_are_and_answered_in_their_order(scene: Scene) -> None:
    line, calls = several(scene, "a", "bcd", "ef", id="several")
    assert [call[9][0] for call in calls] == [([1, 1], 4), ([1, 3], 12), ([1, 2], 8)]
    for number, call in enumerate(calls):
        scene.memory[call[7] : call[7] + 4] = np.float32(number).tobytes()
    for call in reversed(calls):
        scene.loopback.end(call[0], shapes=[[]])
    status, body = answer(line)
    [output] = body["outputs"]
    assert (status, output["shape"], output["data"]) == (200, [3, 1], [0, 1, 2])
    assert until(scene.is_quiet)
    tally = scene.exchange.tally(0)
    assert (tally[0], tally[1], tally[3]) == (3, 3, {("in_time", ""): 3})


def test_where_one_text_has_no_answer_the_call_has_none(scene: Scene) -> None:
    line, calls = several(scene, "a", "b", "c")
    scene.loopback.end(calls[1][0], "failed", "model_error", "it is odd")
    scene.loopback.end(calls[2][0], "dropped", "expired")
    scene.loopback.end(calls[0][0], shapes=[[]])
    assert answer(line) == (500, {"error": "model m failed: it is odd"})
    assert until(scene.is_quiet)
    ended = {("in_time", ""): 1, ("failed", "model_error"): 1, ("dropped", "expired"): 1}
    assert scene.exchange.tally(0)[3] == ended


def test_what_is_the_clients_own_fault_is_what_it_hears(scene: Scene) -> None:
    line = scene.send("a", "b", "c")
    until(lambda: scene.exchange.texts.open(0) == 3)
    scene.take().give([[[1], [1]], (0, "it broke"), (1, "it is odd")])
    scene.loopback.end(scene.taken()[0], "dropped", "sacrificed")
    assert answer(line) == (400, {"error": "model m: it is odd"})


def test_more_texts_than_can_ever_be_in_time_are_not_to_be_sent_again(scene: Scene) -> None:
    scene.loopback.plan([(4 * SECOND, [0, 2 * SECOND, 1 << 60])] * 2, 1)
    scene.serve(objective=4 * SECOND)
    status, body = answer(scene.send("a", "b", "c"))
    expected = "model m cannot answer 3 texts of one call within 4 s: send fewer at once"
    assert (status, body["error"]) == (429, expected)
    first = scene.send("a")
    batch = scene.take()
    status, body = answer(scene.send("b", "c"))
    expected = "overloaded: model m has 1 calls open, more than can be answered in 4000 ms"
    assert (status, body["error"]) == (429, expected)
    batch.give([(1, "")])
    assert answer(first)[0] == 400


def test_a_call_one_of_whose_texts_has_no_tokens_is_its_clients_fault(scene: Scene) -> None:
    line = scene.send("a", "b")
    until(lambda: scene.exchange.texts.open(0) == 2)
    scene.take().give([(2, "it is too long"), [[1], [1]]])
    scene.loopback.end(scene.taken()[0], shapes=[[]])
    assert answer(line) == (413, {"error": "model m: it is too long"})


def test_texts_whose_answers_have_other_shapes_need_calls_of_their_own(scene: Scene) -> None:
    scene.serve(outputs=(TensorSpec("OUT", "FP32", (-1,)),))
    line, calls = several(scene, "a", "b")
    for call, size in zip(calls, (1, 2), strict=True):
        scene.loopback.end(call[0], shapes=[[([1, size], 4 * size)]])
    error = "model m: the rows of one call have answers of unequal shapes; send one text a call"
    assert answer(line) == (500, {"error": error})
    line, calls = several(scene, "a", "b")
    for call in calls:
        scene.loopback.end(call[0], shapes=[[([1, 2], 8)]])
    assert answer(line)[1]["outputs"][0]["shape"] == [2, 2]


def test_all_texts_of_a_call_are_let_in_or_none(scene: Scene) -> None:
    waiting = [scene.send(*"abcd") for _ in range(24)]
    until(lambda: scene.exchange.texts.open(0) == 96)
    assert scene.exchange.admission.open() == 96
    first = scene.send(*"abcd")
    until(lambda: scene.exchange.texts.open(0) == 100)
    status, body = answer(scene.send("a", "b"))
    assert (status, body["error"]) == (429, "overloaded: 100 calls are open already, the most that may be")
    assert scene.exchange.admission.open() == 100
    batch = scene.take()
    batch.give([(1, "")] * 100)
    assert [answer(line)[0] for line in (*waiting, first)] == [400] * 25
    three = scene.send("a", "b", "c")
    until(lambda: scene.exchange.texts.open(0) == 3)
    scene.take().give([(1, "")] * 3)
    assert answer(three)[0] == 400


def test_who_leaves_a_call_of_several_texts_leaves_nothing_behind(scene: Scene) -> None:
    line, calls = several(scene, "a", "b")
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    line.close()
    until(lambda: scene.network.connections() == 0)
    for call in calls:
        scene.loopback.end(call[0], shapes=[[]])
