"""Items of every length through a real server, packed: nobody's answer depends on who was in the batch."""

from __future__ import annotations

import json
import urllib.error
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.server.live_server import Server, eventually, serving

MODELS = """
import numpy as np


def mean(X, OFFSETS):
    return np.add.reduceat(X, OFFSETS[:-1]) / np.diff(OFFSETS)


def weighted(X, W, OFFSETS):
    return np.add.reduceat(X * W, OFFSETS[:-1]) / np.add.reduceat(W, OFFSETS[:-1])


def shares(X, OFFSETS):
    sums = np.add.reduceat(X, OFFSETS[:-1])
    return X / np.repeat(sums, np.diff(OFFSETS)), np.diff(OFFSETS)


def mean_of_all(X, OFFSETS):
    return np.full(len(OFFSETS) - 1, X.mean(), "f4")


def initials(WORDS, OFFSETS):
    pieces = np.split(WORDS, OFFSETS[1:-1])
    return np.array([b"".join(word[:1] for word in piece) for piece in pieces], object)[:, None]
"""
SCENARIO = """
cluster: {gpus: 1}
policy: {name: timeout, timeout: 50ms}
server: {device: cpu}
models:
  mean: {backend: {python: models.py:mean}, pack: true, offsets: OFFSETS, slo: 5s,
    profile: &times {lengths: {1: {1: 1ms, 32: 2ms}, 64: {1: 1ms, 32: 3ms}}},
    inputs: [{name: X, datatype: FP32, shape: ["1..64"]},
             &offsets {name: OFFSETS, datatype: INT32, shape: []}],
    outputs: &one [{name: Y, datatype: FP32, shape: []}]}
  weighted: {backend: {python: models.py:weighted}, pack: true, offsets: OFFSETS, slo: 5s, profile: *times,
    inputs: [{name: X, datatype: FP32, shape: [-1]}, {name: W, datatype: FP32, shape: [-1]}, *offsets],
    outputs: *one}
  shares: {backend: {python: models.py:shares}, pack: true, offsets: OFFSETS, slo: 5s, profile: *times,
    inputs: [{name: X, datatype: FP32, shape: [-1]}, *offsets],
    outputs: [{name: SHARES, datatype: FP32, shape: [-1]}, {name: LONG, datatype: INT32, shape: []}]}
  mixed-up: {backend: {python: models.py:mean_of_all}, pack: true, offsets: OFFSETS, slo: 5s, profile: *times,
    inputs: [{name: X, datatype: FP32, shape: [-1]}, *offsets], outputs: *one}
  words: {backend: {python: models.py:initials}, pack: true, offsets: OFFSETS, slo: 5s, profile: *times,
    inputs: [{name: WORDS, datatype: BYTES, shape: [-1]}, *offsets],
    outputs: [{name: ALL, datatype: BYTES, shape: [1]}]}
"""
LENGTHS = range(1, 30)
Rows = dict[str, Any]  # by input: a row, or several of one length


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder: Path = tmp_path_factory.mktemp("packed")
    (folder / "models.py").write_text(MODELS)
    (folder / "scenario.yaml").write_text(SCENARIO)
    with serving(folder / "scenario.yaml") as running:
        yield running


def answer(server: Server, model: str, inputs: Rows, kind: str = "FP32") -> dict[str, Any]:
    tensors = [
        {"name": name, "datatype": kind, "shape": list(np.shape(rows)), "data": rows}
        for name, rows in inputs.items()
    ]
    said = json.loads(server.post(f"/v2/models/{model}/infer", json.dumps({"inputs": tensors}).encode()))
    return {output["name"]: output["data"] for output in said["outputs"]}


def together(server: Server, model: str, calls: Sequence[Rows], kind: str = "FP32") -> list[dict[str, Any]]:
    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(lambda inputs: answer(server, model, inputs, kind), calls))


def numbers(length: int) -> list[float]:
    drawn = np.random.default_rng(length).uniform(1, 2, length).astype(np.float32)
    return [float(number) for number in drawn]


def test_a_mean_is_the_same_in_every_company(server: Server) -> None:
    said = together(server, "mean", [{"X": [numbers(length)]} for length in LENGTHS])
    assert [one["Y"][0] for one in said] == pytest.approx([np.mean(numbers(length)) for length in LENGTHS])
    assert server.metric("astrarium_split_batches_total", model="mean") == 0


def test_several_inputs_of_one_length_lie_side_by_side(server: Server) -> None:
    calls = [{"X": [numbers(length)], "W": [[2.0] * length]} for length in LENGTHS]
    said = [one["Y"][0] for one in together(server, "weighted", calls)]
    assert said == pytest.approx([np.mean(numbers(length)) for length in LENGTHS])


def test_rows_of_one_call_are_items(server: Server) -> None:
    rows = [numbers(7), numbers(7)[::-1], [1.0] * 7]
    assert answer(server, "mean", {"X": rows})["Y"] == pytest.approx([np.mean(row) for row in rows])


def test_an_open_output_is_as_long_as_its_item(server: Server) -> None:
    said = together(server, "shares", [{"X": [numbers(length)]} for length in LENGTHS])
    for length, one in zip(LENGTHS, said, strict=True):
        assert one["LONG"] == [length]
        assert one["SHARES"] == pytest.approx((np.array(numbers(length)) / sum(numbers(length))).tolist())


def test_texts_can_be_packed(server: Server) -> None:
    said = together(server, "words", [{"WORDS": [["ab", "cd"] * length]} for length in LENGTHS], "BYTES")
    assert [one["ALL"] for one in said] == [["ac" * length] for length in LENGTHS]


def test_a_model_that_mixes_up_its_items_runs_them_one_by_one(server: Server) -> None:
    said = together(server, "mixed-up", [{"X": [numbers(length)]} for length in LENGTHS])
    assert [one["Y"][0] for one in said] == pytest.approx([np.mean(numbers(length)) for length in LENGTHS])
    parameters = json.loads(server.get("/v2/models/mixed-up/config"))["parameters"]
    assert parameters["packing"] == {"string_value": "changes"}
    assert "when packed with others" in parameters["packing_reason"]["string_value"]
    assert "a packed model must keep items apart" in parameters["packing_advice"]["string_value"]


def test_the_config_says_that_packing_is_safe(server: Server) -> None:
    said = json.loads(server.get("/v2/models/mean/config"))
    assert said["parameters"] == {
        "shape:X": {"string_value": '["1..64"]'},
        "packing": {"string_value": "safe"},
    }
    assert [(tensor["name"], tensor["dims"]) for tensor in said["input"]] == [("X", [-1])]


def test_inputs_of_unequal_length_are_refused_alone(server: Server) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        answer(server, "weighted", {"X": [numbers(5)], "W": [numbers(4)]})
    assert refused.value.code == 400
    told = json.loads(refused.value.read())["error"]
    assert "inputs[1].shape[1]: expected 5, as X has in inputs[0] (got 4)" in told


def test_nothing_is_padded(server: Server) -> None:
    def is_counted() -> bool:
        together(server, "mean", [{"X": [numbers(length)]} for length in LENGTHS])
        return server.metric("astrarium_request_length_total", model="mean") > 0

    eventually(is_counted, "a batch that has ended")
    came, computed = (
        server.metric(f"astrarium_{name}_length_total", model="mean") for name in ("request", "computed")
    )
    assert came == computed
