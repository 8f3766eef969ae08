"""A served model whose clients send texts: one, several of unequal length, too long ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http
from tritonclient.utils import InferenceServerException

from tests.support.server.live_server import PATIENCE, Server, serving
from tests.support.server.tokenizers import saved

SCENARIO = """
cluster: {gpus: 1}
models:
  words:
    profile: {alpha: 1ms, beta: 1ms}
    slo: 20s
    backend: {python: model.py:described}
    inputs:
      - {name: input_ids, datatype: INT64, shape: [-1]}
      - {name: attention_mask, datatype: INT64, shape: [-1]}
    outputs: [{name: LENGTH, datatype: INT64, shape: [1]}, {name: SUM, datatype: INT64, shape: [1]}]
    preprocess: {tokenizer: tokenizer.json, longest: 8}
  masked:
    profile: {alpha: 1ms, beta: 1ms}
    slo: 20s
    backend: {python: model.py:described}
    inputs:
      - {name: input_ids, datatype: INT64, shape: ["3..8"]}
      - {name: attention_mask, datatype: INT64, shape: ["3..8"]}
    outputs: [{name: LENGTH, datatype: INT64, shape: [1]}, {name: SUM, datatype: INT64, shape: [1]}]
    preprocess: {tokenizer: tokenizer.json}
    mask: attention_mask
policy: {name: eager}
"""
MODEL = """
def described(input_ids, attention_mask):
    return {"LENGTH": attention_mask.sum(axis=1, keepdims=True), "SUM": input_ids.sum(axis=1, keepdims=True)}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    (folder / "scenario.yaml").write_text(SCENARIO)
    (folder / "model.py").write_text(MODEL)
    saved(folder)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with serving(folder / "scenario.yaml") as running:
        yield running


def ask(
    server: Server, module: Any, *texts: bytes | str, model: str = "words"
) -> tuple[list[int], list[int]]:
    address = server.http if module is over_http else server.grpc
    tensor = module.InferInput("TEXT", [len(texts), 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[text] for text in texts], object))
    with module.InferenceServerClient(address) as client:
        answer = client.infer(model, [tensor])
    return answer.as_numpy("LENGTH").ravel().tolist(), answer.as_numpy("SUM").ravel().tolist()


@pytest.mark.parametrize("module", [over_http, over_grpc])
def test_texts_of_one_call_are_each_as_long_as_they_are(server: Server, module: Any) -> None:
    assert ask(server, module, "the server") == ([4], [2 + 4 + 5 + 3])
    assert ask(server, module, "the", "the server takes", "") == ([3, 5, 2], [9, 20, 5])
    assert ask(server, module, "the " * 50) == ([8], [2 + 6 * 4 + 3])


def test_a_range_says_where_texts_are_cut_and_the_server_fills_the_mask(server: Server) -> None:
    assert ask(server, over_http, "the", "the " * 50, model="masked") == ([3, 8], [9, 2 + 6 * 4 + 3])
    with pytest.raises(InferenceServerException, match="its text has 2 tokens; the model takes 3 or more"):
        ask(server, over_http, "", model="masked")


def test_a_text_that_is_none_is_the_clients_fault_also_among_others(server: Server) -> None:
    with pytest.raises(InferenceServerException, match="its text is not UTF-8") as refused:
        ask(server, over_http, "the", b"\xff", "server")
    assert "400" in str(refused.value.status())


def test_clients_are_told_that_texts_are_taken(server: Server) -> None:
    with over_http.InferenceServerClient(server.http, network_timeout=PATIENCE) as client:
        metadata = client.get_model_metadata("words")
    assert metadata["inputs"] == [{"name": "TEXT", "datatype": "BYTES", "shape": [-1, 1]}]


def test_what_tokens_cost_is_counted(server: Server) -> None:
    ask(server, over_http, "the", "server")
    assert server.metric("astrarium_path_seconds_total", part="tokenizers") > 0


def test_a_tokenizer_that_does_not_fit_is_found_at_the_start(folder: Path) -> None:
    scenario = folder / "misfit.yaml"
    scenario.write_text(SCENARIO.replace("name: input_ids", "name: input_ids, values: [0, 3]"))
    expected = r"models\.words\.preprocess\.tokenizer: expected a tokenizer whose tokens end at 3"
    with pytest.raises(AssertionError, match=expected), serving(scenario):
        pass
