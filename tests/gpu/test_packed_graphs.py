"""Packed texts in CUDA graphs by their total on a real GPU: in every company they are answered as alone.

PYTHONPATH=src python3 -m pytest -m gpu --confcutdir=tests/gpu -s tests/gpu/test_packed_graphs.py
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astrarium.serving.live import fills, messages
from astrarium.serving.live.backends import backends, batches, contract
from astrarium.serving.live.backends.contract import ModelFiles, Place
from astrarium.serving.live.messages import BatchDone, BatchMember, RunBatch
from astrarium.serving.live.tensors import TensorSpec
from astrarium.serving.live.worker.inputs import UnequalItems
from astrarium.serving.live.worker.packing import together
from astrarium.serving.live.worker.padding import joined
from astrarium.serving.live.worker.padding_trial import tried, tried_in_graphs

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

LARGEST = 16
ROOM = 1 << 16  # bytes of a member's block; its reply is in the upper half
TOKENS = TensorSpec("TOKENS", "INT64", (-1,), (0, 99), ranges=((1, 64),))
OFFSETS = TensorSpec("OFFSETS", "INT32", ())
INPUTS = fills.marked((TOKENS, OFFSETS), offsets="OFFSETS", pack=True)

NET = """\
import torch
from torch import nn

class Encoder(nn.Module):
    # Attention within each text, its positions from a table, its first token for a class, as BERT has it.
    def __init__(self, reads_offsets=False):
        super().__init__()
        torch.manual_seed(1)
        self.reads_offsets = reads_offsets
        self.words, self.places = nn.Embedding(100, 64), nn.Embedding(64, 64)
        self.queries, self.keys, self.values = (nn.Linear(64, 64) for _ in range(3))
        self.out = nn.Linear(64, 4)

    def forward(self, tokens, offsets):
        if self.reads_offsets:
            offsets = torch.tensor(offsets.tolist(), device=offsets.device)
        at = torch.arange(len(tokens), device=tokens.device)
        text = torch.searchsorted(offsets[1:].long(), at, right=True)
        words = self.words(tokens) + self.places(at - offsets.long()[text])
        same = text[:, None] == text[None]
        heads = [part(words)[None, None] for part in (self.queries, self.keys, self.values)]
        seen = words + nn.functional.scaled_dot_product_attention(*heads, attn_mask=same)[0, 0]
        return {"TEXT": self.out(seen[offsets[:-1].long()]), "EACH": seen}
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


def loaded(home: Path, **options: Any) -> Any:
    options = {"model": "net.py:Encoder", **options}
    files = ModelFiles("m", "torch", options, INPUTS, (), LARGEST, home)
    return backends.get("torch")(replace(files, offsets="OFFSETS", pack=True), Place(device="cuda:0"))


def load(home: Path, **options: Any) -> Any:
    model = loaded(home, **options)
    model.padding_is(True)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*without CUDA graphs")
        model.warm_up([1])
    return model


def texts(lengths: Sequence[int]) -> list[Any]:
    chance = np.random.default_rng(sum(lengths))
    return [chance.integers(100, size=length) for length in lengths]


def alone(model: Any, text: Any) -> dict[str, Any]:
    outputs = model.run(batches.packed(INPUTS, {"TOKENS": [text]})).outputs
    return {name: np.array(outputs[name][0]) for name in ("TEXT", "EACH")}


def check(model: Any, eager: Any, lengths: Sequence[int]) -> None:
    items = texts(lengths)
    parts = replace(together(INPUTS, model), allowed=True).parts(UnequalItems(len(items), {"TOKENS": items}))
    outputs = joined(parts, [model.run(part.batch) for part in parts]).outputs
    for place, item in enumerate(items):
        for name, wanted in alone(eager, item).items():
            assert np.shape(outputs[name][place]) == wanted.shape
            assert outputs[name][place] == pytest.approx(wanted, abs=1e-4)


def natively(model: Any, items: Sequence[Any], times: int = 1) -> list[dict[str, Any]]:
    """Return the answers of a batch that native code has run; TEXT comes first, as the model gives them."""
    memory = bytearray(ROOM * len(items))
    for i, item in enumerate(items):
        memory[i * ROOM : i * ROOM + item.nbytes] = item.tobytes()
    members = [BatchMember(i * ROOM, 1, 0, i * ROOM + ROOM // 2, ROOM // 2) for i in range(len(items))]
    shapes: Any = [[((1, len(item)), item.nbytes)] for item in items]
    order = messages.encode(RunBatch(0, 0, messages.packed(members), 0, shapes))
    news = list(map(messages.decode_news, model.graphs.rehearse(memoryview(memory), order, times)))
    assert all(isinstance(one, BatchDone) for one in news), news
    answers = []
    for i, item in enumerate(items):
        at = i * ROOM + ROOM // 2
        text = np.frombuffer(memory, np.float32, 4, at).copy()
        each = np.frombuffer(memory, np.float32, 64 * len(item), at + 64).reshape(-1, 64).copy()
        answers.append({"TEXT": text, "EACH": each})
    return answers


def drawn(count: int) -> list[list[int]]:
    chance = np.random.default_rng(count)
    sizes = chance.integers(1, LARGEST, count, endpoint=True)
    return [chance.integers(1, 64, size, endpoint=True).tolist() for size in sizes]


def test_packed_texts_are_answered_as_alone(home: Path) -> None:
    model, eager = load(home), loaded(home, graphs=False)
    for lengths in ([1], [64], [64] * LARGEST, [1] * LARGEST, *drawn(20)):
        check(model, eager, lengths)
    assert model.beside_graphs == 0
    contract.complete(model)
    assert len(model.packed_shapes) == len(model._runner.shapes.packed)
    for lengths in drawn(20):
        check(model, eager, lengths)
    assert model.beside_graphs == 0


def test_native_code_runs_the_same_graphs(home: Path) -> None:
    model, eager = load(home), loaded(home, graphs=False)
    assert model.graphs is not None, "nothing here needs Python"
    for lengths in ([1], [64] * LARGEST, *drawn(20)):
        items = texts(lengths)
        for times in (1, 3):
            for item, answer in zip(items, natively(model, items, times), strict=True):
                for name, wanted in alone(eager, item).items():
                    assert answer[name] == pytest.approx(wanted, abs=1e-4)


def test_the_trial_finds_that_texts_are_kept_apart(home: Path) -> None:
    model = loaded(home)
    padding = together(INPUTS)
    verdict = tried(model, padding, LARGEST, careful=True)
    assert verdict.padding == "safe", verdict
    assert tried_in_graphs(model, padding, verdict, LARGEST).padding == "safe"


def test_a_graph_is_launched_where_kernels_were(home: Path) -> None:
    model = load(home)
    items = UnequalItems(3, {"TOKENS": texts([5, 30, 11])})
    (part,) = replace(together(INPUTS, model), allowed=True).parts(items)
    model.run(part.batch)
    with torch.profiler.profile() as profiled:
        model.run(part.batch)
    assert any("GraphLaunch" in event.key for event in profiled.key_averages())
    assert sum(event.count for event in profiled.key_averages() if "LaunchKernel" in event.key) < 4


def test_the_rest_is_captured_while_batches_run(home: Path) -> None:
    model, eager = load(home), loaded(home, graphs=False)
    assert model.partial
    capturing = threading.Thread(target=lambda: contract.complete(model))
    capturing.start()
    while capturing.is_alive():
        check(model, eager, [5, 30, 11])
    capturing.join()
    check(model, eager, [5, 30, 11])


def test_a_model_that_reads_the_offsets_on_the_host_runs_without_graphs(home: Path) -> None:
    model = loaded(home, arguments={"reads_offsets": True})
    with pytest.warns(UserWarning, match="runs without CUDA graphs, capturing a batch of"):
        model.warm_up([1])
    assert model.packed_shapes == ()
    check(model, loaded(home, graphs=False), [5, 30, 11])
