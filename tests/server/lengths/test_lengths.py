"""Inputs of every length, through a real server: nobody's answer depends on who was in the batch."""

from __future__ import annotations

import json
import urllib.error
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.support.server.live_server import Server, eventually, serving

LENGTHS = range(1, 30)
MODELS = """
import numpy as np


def mean(X):
    return X.mean(axis=1)


def mean_by_length(X, LENGTHS):
    return X.sum(axis=1) / LENGTHS[:, 0]


def mean_by_mask(X, MASK):
    return (X * MASK).sum(axis=1) / MASK.sum(axis=1)


def mean_of_image(X):
    return X.mean(axis=(1, 2))


def shown(X, MASK, LENGTHS):
    return MASK, LENGTHS


def first_words(WORDS):
    return np.array([b"/".join(words) for words in WORDS], object)[:, None]
"""
SCENARIO = """
cluster: {gpus: 1}
policy: {name: timeout, timeout: 50ms}
server: {device: cpu}
models:
  mean: {backend: {python: models.py:mean}, inputs: &open [{name: X, datatype: FP32, shape: ["1..64"]}],
    outputs: &one [{name: Y, datatype: FP32, shape: []}], profile: &times {table: {1: 1ms, 32: 2ms}}, slo: 5s}
  by-length: {backend: {python: models.py:mean_by_length}, lengths: LENGTHS, profile: *times, slo: 5s,
    outputs: *one,
    inputs: [{name: X, datatype: FP32, shape: [-1]}, {name: LENGTHS, datatype: INT64, shape: [1]}]}
  by-mask: {backend: {python: models.py:mean_by_mask}, mask: MASK, outputs: *one, profile: *times, slo: 5s,
    inputs: [{name: X, datatype: FP32, shape: [-1]}, {name: MASK, datatype: UINT8, shape: [-1]}]}
  image: {backend: {python: models.py:mean_of_image}, outputs: *one, profile: *times, slo: 5s,
    inputs: [{name: X, datatype: FP32, shape: [-1, -1]}]}
  shown: {backend: {python: models.py:shown}, mask: MASK, lengths: LENGTHS, profile: *times, slo: 5s,
    inputs: [{name: X, datatype: FP32, shape: [-1]}, {name: MASK, datatype: BOOL, shape: [-1]},
             {name: LENGTHS, datatype: INT32, shape: []}],
    outputs: [{name: SEEN, datatype: BOOL, shape: [-1]}, {name: LONG, datatype: INT32, shape: []}]}
  words: {backend: {python: models.py:first_words}, profile: *times, slo: 5s,
    inputs: [{name: WORDS, datatype: BYTES, shape: [-1]}],
    outputs: [{name: ALL, datatype: BYTES, shape: [1]}]}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder: Path = tmp_path_factory.mktemp("lengths")
    (folder / "models.py").write_text(MODELS)
    (folder / "scenario.yaml").write_text(SCENARIO)
    with serving(folder / "scenario.yaml") as running:
        yield running


def answer(server: Server, model: str, name: str, kind: str, shape: list[int], data: Any) -> dict[str, Any]:
    tensor = {"name": name, "datatype": kind, "shape": [1, *shape], "data": data}
    said = json.loads(server.post(f"/v2/models/{model}/infer", json.dumps({"inputs": [tensor]}).encode()))
    return {output["name"]: output["data"] for output in said["outputs"]}


Calls = list[tuple[str, str, list[int], Any]]


def together(server: Server, model: str, calls: Calls) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(lambda call: answer(server, model, *call), calls))


@pytest.mark.parametrize("model", ["mean", "by-length", "by-mask"])
def test_a_mean_is_the_same_in_every_company(server: Server, model: str) -> None:
    calls = [("X", "FP32", [length], [1.0] * length) for length in LENGTHS]
    assert [said["Y"] for said in together(server, model, calls)] == [[1.0]] * len(LENGTHS)


def test_two_open_dimensions_are_kept_apart(server: Server) -> None:
    sizes = [(high, wide) for high in range(1, 6) for wide in (2, 5, 7)]
    calls = [("X", "FP32", [high, wide], [1.0] * (high * wide)) for high, wide in sizes]
    assert [said["Y"] for said in together(server, "image", calls)] == [[1.0]] * len(sizes)


def test_texts_of_unequal_number_are_not_padded_with_empty_ones(server: Server) -> None:
    calls = [("WORDS", "BYTES", [count], ["a"] * count) for count in LENGTHS]
    said = together(server, "words", calls)
    assert [one["ALL"] for one in said] == [["/".join("a" * count)] for count in LENGTHS]


def test_a_model_is_told_what_is_padding(server: Server) -> None:
    calls = [("X", "FP32", [length], [1.0] * length) for length in LENGTHS]
    said = together(server, "shown", calls)
    assert [one["SEEN"] for one in said] == [[True] * length for length in LENGTHS]
    assert [one["LONG"] for one in said] == [[length] for length in LENGTHS]


def test_the_configuration_says_what_padding_does_and_the_range(server: Server) -> None:
    parameters = json.loads(server.get("/v2/models/mean/config"))["parameters"]
    assert parameters["padding"] == {"string_value": "changes"}
    assert "padded to length" in parameters["padding_reason"]["string_value"]
    assert parameters["padding_advice"]["string_value"] == (
        "model mean: an input that the server fills (`mask: NAME` or `lengths: NAME`) "
        "can tell it what padding is"
    )
    assert parameters["shape:X"] == {"string_value": '["1..64"]'}
    for model in ("by-length", "by-mask"):
        said = json.loads(server.get(f"/v2/models/{model}/config"))
        assert said["parameters"] == {"padding": {"string_value": "safe"}}
        assert [tensor["name"] for tensor in said["input"]] == ["X"]


def test_clients_see_what_they_send(server: Server) -> None:
    said = json.loads(server.get("/v2/models/by-mask"))
    assert [(tensor["name"], tensor["shape"]) for tensor in said["inputs"]] == [("X", [-1, -1])]
    ranged = json.loads(server.get("/v2/models/mean"))["inputs"]
    assert ranged[0]["shape"] == [-1, -1]


def test_batches_that_were_run_in_parts_are_counted(server: Server) -> None:
    calls: Calls = [("X", "FP32", [length], [1.0] * length) for length in LENGTHS]

    def are_counted() -> bool:
        for model in ("mean", "by-mask"):
            together(server, model, calls)
        return server.metric("astrarium_split_batches_total", model="mean") > 0

    eventually(are_counted, "a split batch")
    assert server.metric("astrarium_split_batches_total", model="by-mask") == 0


def test_a_length_beyond_the_range_is_refused_over_grpc(server: Server) -> None:
    with triton.InferenceServerClient(server.grpc) as client:
        tensor = triton.InferInput("X", [1, 65], "FP32")
        tensor.set_data_from_numpy(np.ones((1, 65), np.float32))
        with pytest.raises(InferenceServerException) as refused:
            client.infer("mean", [tensor])
    assert refused.value.status() == "StatusCode.INVALID_ARGUMENT"
    assert "inputs[0].shape[1]: expected from 1 to 64 for X (got 65)" in (refused.value.message() or "")


@pytest.mark.parametrize("length", [65, 100])
def test_a_length_beyond_the_range_is_refused(server: Server, length: int) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        answer(server, "mean", "X", "FP32", [length], [1.0] * length)
    said = refused.value.read().decode()
    assert refused.value.code == 400
    assert f"inputs[0].shape[1]: expected from 1 to 64 for X (got {length})" in said


TEXTS = """
cluster: {gpus: 1}
policy: {name: astrarium}
models:
  texts: {slo: 2s, inputs: [{name: TOKENS, datatype: INT64, shape: ["1..512"]}],
    profile: {lengths: {16: {1: 2ms, 8: 4ms}, 512: {1: 400ms, 8: 800ms}}, rounded: true}}
"""


@pytest.fixture(scope="module")
def text_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    file: Path = tmp_path_factory.mktemp("texts") / "scenario.yaml"
    file.write_text(TEXTS)
    with serving(file) as running:
        yield running


def tokens(length: int, timeout_us: int) -> bytes:
    tensor = {"name": "TOKENS", "datatype": "INT64", "shape": [1, length], "data": [1] * length}
    return json.dumps({"inputs": [tensor], "parameters": {"timeout": timeout_us}}).encode()


def test_a_call_is_judged_by_its_own_length(text_server: Server) -> None:
    """Two hundred milliseconds are enough for sixteen tokens, and not for 512."""
    path = "/v2/models/texts/infer"
    assert json.loads(text_server.post(path, tokens(16, 200_000)))["outputs"]
    with pytest.raises(urllib.error.HTTPError) as refused:
        text_server.post(path, tokens(512, 200_000))
    said = json.loads(refused.value.read())["error"]
    assert refused.value.code == 504
    assert said.startswith(
        "model texts cannot answer within 200 ms: one request of length 512 alone takes 40"
    )
    assert json.loads(text_server.post(path, tokens(512, 1_900_000)))["outputs"]
