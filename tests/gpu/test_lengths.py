"""Texts of every length in CUDA graphs on a real GPU: padded to a bucket, they are answered as alone.

PYTHONPATH=src python3 -m pytest -m gpu --confcutdir=tests/gpu -s tests/gpu/test_lengths.py
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astrarium.serving.live import fills, messages
from astrarium.serving.live.backends import backends, contract
from astrarium.serving.live.backends.contract import Batch, ModelFiles, Place
from astrarium.serving.live.messages import BatchDone, BatchMember, RunBatch
from astrarium.serving.live.tensors import TensorSpec
from astrarium.serving.live.worker.padding import Padding
from astrarium.serving.live.worker.padding_trial import tried
from astrarium.serving.live.worker.repeated_order import RepeatedOrder

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

WIDTH = 64
LARGEST = 16
BUCKETS = (16, 32, 64)
ROOM = 1 << 17  # bytes of a member's block; its reply is in the upper half
TOKENS = TensorSpec("TOKENS", "INT64", (-1,), (0, 99), ranges=((1, 64),))
MASK = TensorSpec("MASK", "INT64", (-1,), ranges=((1, 64),))
LENGTHS = TensorSpec("LENGTHS", "INT64", ())

NET = """\
import torch
from torch import nn

class Encoder(nn.Module):
    # Heeds a mask or lengths, where it is given one; answers for each text, and for each token.
    def __init__(self, heeds=""):
        super().__init__()
        torch.manual_seed(1)
        self.heeds = heeds
        self.words = nn.Embedding(100, 64)
        self.queries, self.keys, self.values = (nn.Linear(64, 64) for _ in range(3))
        self.out = nn.Linear(64, 4)

    def forward(self, tokens, filled=None):
        if self.heeds == "lengths":
            filled = torch.arange(tokens.shape[1], device=tokens.device)[None] < filled[:, None]
        words = self.words(tokens)
        mask = None if filled is None else filled.bool()[:, None, None, :]
        heads = [part(words)[:, None] for part in (self.queries, self.keys, self.values)]
        seen = words + nn.functional.scaled_dot_product_attention(*heads, attn_mask=mask)[:, 0]
        weights = torch.ones_like(tokens) if filled is None else filled
        weights = weights[..., None].float()
        return {"TEXT": self.out((seen * weights).sum(1) / weights.sum(1)), "EACH": seen}
"""
FILLED = {"": (), "mask": (MASK,), "lengths": (LENGTHS,)}


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


def load(home: Path, heeds: str, safe: bool | None = None, **given: Any) -> Any:
    options = {"model": "net.py:Encoder", "arguments": {"heeds": heeds}, **given.pop("options", {})}
    names: Any = {heeds: heeds.upper()} if heeds else {}
    files = ModelFiles("m", "torch", options, (TOKENS, *FILLED[heeds]), (), LARGEST, home, **names, **given)
    model: Any = backends.get("torch")(files, Place(device="cuda:0"))
    if safe is not None:
        model.padding_is(safe)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*without CUDA graphs")
        model.warm_up([1])
    if safe and model.graphs is not None:
        model.graphs.allow_padding()
    return model


def texts(lengths: Sequence[int]) -> list[Any]:
    chance = np.random.default_rng(len(lengths))
    return [chance.integers(100, size=length) for length in lengths]


def alone(model: Any, text: Any) -> dict[str, Any]:
    inputs = fills.complete(model.inputs, {"TOKENS": text[None]})
    outputs = model.run(Batch(1, inputs)).outputs
    return {name: np.array(outputs[name][0]) for name in ("TEXT", "EACH")}


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
    for i, own in enumerate(news[-1].shapes):
        at = i * ROOM + ROOM // 2
        answer = {}
        for spec, (shape, size) in zip(model.outputs, own, strict=True):
            answer[spec.name] = np.frombuffer(memory, np.float32, size // 4, at).reshape(shape[1:]).copy()
            at += -(-size // 64) * 64
        answers.append(answer)
    return answers


def check(answers: Sequence[dict[str, Any]], wanted: Sequence[dict[str, Any]]) -> None:
    for answer, want in zip(answers, wanted, strict=True):
        for name, array in want.items():
            assert answer[name].shape == array.shape
            assert answer[name] == pytest.approx(array, abs=1e-4)


@pytest.mark.parametrize("heeds", ["mask", "lengths"])
@pytest.mark.parametrize("lengths", [[5], [1, 16, 7], [3, 40, 17, 64, 2], [12] * 13, [1] * 16])
def test_padded_texts_are_answered_as_alone(home: Path, heeds: str, lengths: list[int]) -> None:
    model = load(home, heeds, safe=True, buckets=BUCKETS)
    assert model.graphs is not None, "nothing here needs Python"
    eager = load(home, heeds, options={"graphs": False})
    items = texts(lengths)
    wanted = [alone(eager, item) for item in items]
    for times in (1, 2, 5):
        check(natively(model, items, times), wanted)
    contract.complete(model)
    check(natively(model, items), wanted)


@pytest.mark.parametrize("heeds", ["", "mask", "lengths"])
def test_the_trial_knows_who_heeds_padding(home: Path, heeds: str) -> None:
    names: Any = {heeds: heeds.upper()} if heeds else {}
    options = {"model": "net.py:Encoder", "arguments": {"heeds": heeds}}
    files = ModelFiles("m", "torch", options, (TOKENS, *FILLED[heeds]), (), LARGEST, home, **names)
    model: Any = backends.get("torch")(files, Place(device="cuda:0"))
    verdict = tried(model, Padding(model.inputs, False, (model.buckets,)), LARGEST, careful=True)
    assert verdict.padding == ("safe" if heeds else "changes")


def test_without_mask_or_lengths_equal_texts_run_in_graphs(home: Path) -> None:
    model = load(home, "", safe=False, buckets=BUCKETS)
    eager = load(home, "", options={"graphs": False})
    for size, length in ((1, 16), (5, 32), (16, 64)):
        items = texts([length] * size)
        check(natively(model, items), [alone(eager, item) for item in items])
    assert contract.graph_runner(model, 2, 17) is None
    check([alone(model, item) for item in texts([17])], [alone(eager, item) for item in texts([17])])
    assert model.beside_graphs == 1


@pytest.mark.parametrize("heeds", ["", "mask", "lengths"])
def test_python_runs_the_same_graphs(home: Path, heeds: str) -> None:
    model = load(home, heeds, buckets=BUCKETS)
    eager = load(home, heeds, options={"graphs": False})
    for size, length in ((3, 16), (16, 64), (2, 32)):
        tokens = np.stack(texts([length] * size))
        batch = Batch(size, fills.complete(model.inputs, {"TOKENS": tokens}))
        for name in ("TEXT", "EACH"):
            answer = np.array(model.run(batch).outputs[name])
            assert answer == pytest.approx(np.array(eager.run(batch).outputs[name]), abs=1e-4)
    assert model.beside_graphs == 0


def test_a_graph_is_launched_where_kernels_were(home: Path) -> None:
    model = load(home, "mask", safe=True)
    assert model.buckets[-1] == 64
    batch = Batch(4, fills.complete(model.inputs, {"TOKENS": np.stack(texts([64] * 4))}))
    model.run(batch)
    with torch.profiler.profile() as profiled:
        model.run(batch)
    assert sum(event.count for event in profiled.key_averages() if "LaunchKernel" in event.key) < 4


def test_the_rest_is_captured_while_batches_run(home: Path) -> None:
    model = load(home, "mask", safe=True, buckets=BUCKETS)
    items = texts([5, 30, 11])
    eager = load(home, "mask", options={"graphs": False})
    wanted = [alone(eager, item) for item in items]
    assert model.partial
    before = len(model._runner._graphs)
    capturing = threading.Thread(target=lambda: contract.complete(model))
    capturing.start()
    while capturing.is_alive():
        check(natively(model, items, 3), wanted)
    capturing.join()
    assert len(model._runner._graphs) > before
    check(natively(model, items, 3), wanted)


def test_a_batch_of_a_bucket_is_measured_natively(home: Path) -> None:
    model = load(home, "mask", buckets=BUCKETS)
    tokens = np.stack(texts([32] * 4))
    order = RepeatedOrder(model, Batch(4, fills.complete(model.inputs, {"TOKENS": tokens})))
    assert len(order.carried_out(6)) == 6
