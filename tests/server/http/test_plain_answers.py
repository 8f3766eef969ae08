"""Network threads write answers as the long way does."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrarium.server.contract import InferAnswer, Stages
from astrarium.server.http.inference import written_answer
from astrarium.serving.live.layout import aligned
from astrarium.serving.live.tensors import Tensor
from tests.support.server.plain_calls import (
    CARDS,
    NUMBERS,
    LongWay,
    NetworkThread,
    plain,
    request,
    taken,
    tensor,
    the_thread,
    values,
)


@pytest.fixture
def thread() -> NetworkThread:
    return the_thread()


@given(st.sampled_from(NUMBERS), st.integers(1, 3), st.booleans(), st.data())
@settings(max_examples=200, deadline=None)
def test_an_answer_says_what_the_long_way_says(
    datatype: str, rows: int, binary: bool, drawn: st.DataObject
) -> None:
    thread = the_thread()
    card = next(card for card in CARDS if card.name == datatype.lower())
    wanted = [{"name": "Y", "parameters": {"binary_data": binary}}, {"name": "X"}]
    body = plain(datatype, outputs=wanted, id="seven")
    body["inputs"] = [tensor("A", datatype, [[1, 0]] * rows), tensor("B", "FP32", [[[1, 2]]] * rows)]
    if datatype == "BOOL":
        body["inputs"][0]["data"] = [[True, False]] * rows
    data = request(json.dumps(body).encode(), card.name)
    xs = drawn.draw(values(datatype, (rows, 2)))
    ys = drawn.draw(values("FP32", (rows, 3, 2)))
    if drawn.draw(st.booleans()) and datatype in ("FP16", "FP32", "FP64"):
        xs[0, 0] = drawn.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    call = taken(thread.read(data))
    for row in range(rows):
        at = call.replies + row * call.room
        thread.memory[at : at + xs[row].nbytes] = xs[row].tobytes()
        at += aligned(xs[row].nbytes)
        thread.memory[at : at + ys[row].nbytes] = ys[row].tobytes()
    shapes = [((1, 2), xs[0].nbytes), ((1, 3, 2), ys[0].nbytes)]
    head, _, content = thread.answer(call, shapes).partition(b"\r\n\r\n")
    tensors = [Tensor("X", datatype, xs.shape, xs.tobytes()), Tensor("Y", "FP32", ys.shape, ys.tobytes())]
    answer = InferAnswer(tensors, Stages(0, 0, 0, 0, 0, 0), rows, 0, True, lambda: None)
    headers, expected = written_answer(card, LongWay(data).asked(), answer)
    given_headers = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:])
    assert int(given_headers[b"content-length"]) == len(content)
    sizes = [
        int(dict(side).get(b"inference-header-content-length", len(text)))
        for side, text in ((given_headers.items(), content), (headers, expected))
    ]
    ours = json.loads(content[: sizes[0]])
    theirs = json.loads(expected[: sizes[1]])
    assert ours == theirs
    assert content[sizes[0] :] == expected[sizes[1] :]


def test_a_shape_of_a_thousand_dimensions_goes_the_long_way(thread: NetworkThread) -> None:
    body = json.dumps(plain()).replace('"shape": [1, 2]', '"shape": [1, 2' + 1000 * ", 1" + "]")
    assert thread.read(request(body.encode())) == "body"


def test_every_half_precision_number_is_written_and_read_as_numpy_does(thread: NetworkThread) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    thread.serve(50, "halves", [("A", "FP16", [-1], None)], [("X", "FP16", [-1], None)], 1)
    for part in np.array_split(every, 16):
        finite = np.where(np.isfinite(part), part, np.float16(0))
        body = {"inputs": [tensor("A", "FP16", finite[None].astype(float))]}
        call = taken(thread.read(request(json.dumps(body).encode(), "halves")))
        assert thread.tensors(call) == [((1, len(part)), finite.tobytes())]
        thread.memory[call.replies : call.replies + part.nbytes] = part.tobytes()
        sent = thread.answer(call, [((1, len(part)), part.nbytes)])
        elements = json.loads(sent.partition(b"\r\n\r\n")[2])["outputs"][0]["data"]
        assert elements == [float(x) if np.isfinite(x) else None for x in part]


@given(st.floats(-70000, 70000) | st.floats(-1e-4, 1e-4))
@settings(max_examples=300, deadline=None)
def test_a_number_becomes_the_nearest_half(value: float) -> None:
    thread = the_thread()
    thread.serve(51, "half", [("A", "FP16", [1], None)], [("X", "FP16", [1], None)], 1)
    call = thread.read(request(json.dumps({"inputs": [tensor("A", "FP16", [[value]])]}).encode(), "half"))
    try:
        expected = struct.pack("<e", value)
    except OverflowError:
        assert call == "body"  # the long way says that it is too large
    else:
        assert thread.tensors(taken(call)) == [((1, 1), expected)]
        thread.drop(taken(call))
