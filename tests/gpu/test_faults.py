"""A device-side assert on a real GPU costs the call that caused it, and nobody else for long.

PYTHONPATH=src python3 -m pytest -m gpu --confcutdir=tests/gpu -s tests/gpu/test_faults.py
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.support.server.live_server import Server, serving

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

NETS = """\
import torch


class Words(torch.nn.Module):
    # Its embedding tells which tokens there are.
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(100, 4)

    def forward(self, TOKENS):
        return self.words(TOKENS).mean(1)


class Picks(torch.nn.Module):
    # Nobody can tell from outside which numbers it takes.
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.ones(100, 4))

    def forward(self, X):
        return self.table[(X[:, 0] * 2).long()]
"""
SCENARIO = {
    "cluster": {"gpus": 1},
    "models": {
        "words": {
            "profile": {"table": {1: "5ms", 8: "10ms"}},
            "slo": "2s",
            "max_batch": 8,
            "backend": {"torch": "nets.py:Words"},
            "inputs": [{"name": "TOKENS", "datatype": "INT64", "shape": [4]}],
        },
        "picks": {
            "profile": {"table": {1: "5ms", 8: "10ms"}},
            "slo": "2s",
            "max_batch": 8,
            "backend": {"torch": "nets.py:Picks"},
            "inputs": [{"name": "X", "datatype": "FP32", "shape": [4]}],
        },
    },
    "server": {"start_limit": "120s"},
}
PATIENCE = 60.0  # seconds


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "nets.py").write_text(NETS)
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(SCENARIO))
    with serving(path) as running:
        yield running


def ask(server: Server, model: str, value: float) -> tuple[int, str]:
    name, datatype = ("TOKENS", "INT64") if model == "words" else ("X", "FP32")
    tensor = {"name": name, "datatype": datatype, "shape": [1, 4], "data": [value, 0, 0, 0]}
    body = json.dumps({"inputs": [tensor]}).encode()
    try:
        with urllib.request.urlopen(f"http://{server.http}/v2/models/{model}/infer", body, 30) as answer:
            return int(answer.status), answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def until_answered(server: Server, model: str, value: float) -> None:
    """`benchmarks/serving/parts/bad_values.py` says how long that takes."""
    ends = time.monotonic() + PATIENCE
    while ask(server, model, value)[0] != 200:
        assert time.monotonic() < ends, ask(server, model, value)
        time.sleep(0.05)


def test_a_token_beyond_the_embedding_is_refused_before_it_can_hurt(server: Server) -> None:
    status, refusal = ask(server, "words", 100)
    assert (status, "expected values from 0 to 99 (got 100)" in refusal) == (400, True)
    assert ask(server, "words", 99)[0] == 200
    assert server.metric("astrarium_worker_restarts_total") == 0


def test_a_device_side_assert_costs_its_call_and_the_server_goes_on(server: Server) -> None:
    assert ask(server, "picks", 1)[0] == 200
    status, refusal = ask(server, "picks", 1e6)
    assert status == 500
    assert "assert" in refusal, refusal
    assert "while it ran this call alone" in refusal
    until_answered(server, "words", 1)
    assert ask(server, "picks", 1e6)[0] == 422, "the same input is in quarantine"
    until_answered(server, "picks", 1)
    assert server.metric("astrarium_worker_restarts_total") == 1
    assert server.metric("astrarium_quarantined_inputs") == 1


def test_a_model_that_asserts_again_is_set_apart_and_the_other_is_not_away_any_more(server: Server) -> None:
    for value in (1e6, 2e6):
        until_answered(server, "picks", 1)
        assert ask(server, "picks", value)[0] == 500
    until_answered(server, "words", 1)
    until_answered(server, "picks", 1)
    assert server.metric("astrarium_models_apart") == 1
    assert ask(server, "picks", 3e6)[0] == 500
    for _ in range(20):
        assert ask(server, "words", 1)[0] == 200
    until_answered(server, "picks", 1)
    assert server.metric("astrarium_unaccounted") == 0
