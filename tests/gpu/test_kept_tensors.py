"""A module that keeps tensors between its calls, in CUDA graphs of several lengths on a real GPU.

PYTHONPATH=src python3 -m pytest -m gpu --confcutdir=tests/gpu -s tests/gpu/test_kept_tensors.py
"""

from __future__ import annotations

import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astrarium.serving.live.backends import backends, contract
from astrarium.serving.live.backends.contract import Batch, ModelFiles, Place
from astrarium.serving.live.tensors import TensorSpec

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

LARGEST = 8
BUCKETS = (16, 48, 128, 512)
BESIDE = (5, 37, 100, 300)  # lengths of batches that run beside the graphs
TOKENS = TensorSpec("TOKENS", "INT64", (-1,), (0, 99), ranges=((1, 512),))

NET = """\
import torch
from torch import nn

class Rotary(nn.Module):
    # As in ESM: tables for one length, which are made anew for another one; or where the last ones were.
    def __init__(self, in_place):
        super().__init__()
        self.register_buffer("inverse", 1.0 / 100 ** (torch.arange(0, 64, 2).float() / 64))
        self.in_place = in_place
        self.length = 0
        self.tables = [None, None]

    def update(self, length, device):
        if length == self.length:
            return
        at = torch.arange(512 if self.in_place else length, device=device).float()
        angles = torch.outer(at * (1 + 1 / length), self.inverse).repeat(1, 2)
        made = [angles.cos(), angles.sin()]
        if self.in_place and self.length:
            made = [table.copy_(new) for table, new in zip(self.tables, made)]
        self.length, self.tables = length, made

    def forward(self, x):
        self.update(x.shape[1], x.device)
        cos, sin = (table[: x.shape[1]] for table in self.tables)
        return x * cos + torch.cat([-x[..., 32:], x[..., :32]], -1) * sin

class Encoder(nn.Module):
    def __init__(self, in_place=False):
        super().__init__()
        torch.manual_seed(1)
        self.words = nn.Embedding(100, 64)
        self.rotary = nn.ModuleList(Rotary(in_place) for _ in range(4))
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))

    def forward(self, tokens):
        words = self.words(tokens)
        for rotary, layer in zip(self.rotary, self.layers):
            turned, values = rotary(layer(words))[:, None], words[:, None]
            words = words + nn.functional.scaled_dot_product_attention(turned, turned, values)[:, 0]
        return {"TEXT": words.mean(1)}
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(NET)
    return tmp_path


@pytest.fixture(autouse=True)
def exact() -> Any:
    kept = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = kept


def load(home: Path, in_place: bool = False, **options: Any) -> Any:
    options = {"model": "net.py:Encoder", "arguments": {"in_place": in_place}, **options}
    files = ModelFiles("m", "torch", options, (TOKENS,), (), LARGEST, home, buckets=BUCKETS)
    model: Any = backends.get("torch")(files, Place(device="cuda:0"))
    model.warm_up([1])
    return model


def batch(size: int, length: int) -> Batch:
    tokens = np.random.default_rng(size * length).integers(100, size=(size, length))
    return Batch(size, {"TOKENS": tokens})


def answer(model: Any, size: int, length: int) -> Any:
    return np.array(model.run(batch(size, length)).outputs["TEXT"])


def check_all(model: Any, home: Path) -> None:
    eager = load(home, graphs=False)
    for length in (*BUCKETS, *reversed(BUCKETS)):
        for size in (1, 3, LARGEST):
            wanted = answer(eager, size, length)
            assert answer(model, size, length) == pytest.approx(wanted, abs=1e-3), (size, length)
            torch.cuda.empty_cache()
            torch.full((1 << 24,), float("nan"), device="cuda:0")  # over what was freed
            answer(model, 2, BESIDE[size % len(BESIDE)])


def test_graphs_of_every_length_answer_as_the_model_does(home: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*without CUDA graphs")
        model = load(home)
    check_all(model, home)
    contract.complete(model)
    model._runner.beside_graphs = 0
    check_all(model, home)
    assert model._runner.beside_graphs == 2 * len(BUCKETS) * 3, "the batches of other lengths alone"


def test_the_rest_is_captured_while_batches_of_other_lengths_run(home: Path) -> None:
    model = load(home)
    eager = load(home, graphs=False)
    wanted = {length: answer(eager, 2, length) for length in BESIDE}
    capturing = threading.Thread(target=lambda: contract.complete(model))
    capturing.start()
    while capturing.is_alive():
        for length, want in wanted.items():
            assert answer(model, 2, length) == pytest.approx(want, abs=1e-3)
    capturing.join()
    check_all(model, home)


def test_a_model_that_changes_its_tables_in_place_runs_without_graphs(home: Path) -> None:
    with pytest.warns(UserWarning, match="runs without CUDA graphs, a batch of 8 of length 512 is answered"):
        model = load(home, in_place=True)
    assert not model._runner._graphs
    eager = load(home, in_place=True, graphs=False)
    for length in (*BUCKETS, *BESIDE):
        assert answer(model, 3, length) == pytest.approx(answer(eager, 3, length), abs=1e-3)
