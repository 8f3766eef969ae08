"""Inputs that index an embedding of a PyTorch model have its rows as their limit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from astrarium.serving.live.backends import backends
from astrarium.serving.live.backends import torch as torch_backend
from astrarium.serving.live.backends.contract import ModelFiles, Place
from astrarium.serving.live.tensors import TensorSpec
from tests.serving.live.backends.torch_models import NET, X

torch = pytest.importorskip("torch")

INDEXING = """\
import torch
from torch import nn
from torch.nn import functional

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.few, self.places = nn.Embedding(100, 4), nn.Embedding(50, 4), nn.Embedding(512, 4)
        self.kinds, self.bags = nn.Embedding(2, 4), nn.EmbeddingBag(30, 4)

    def forward(self, tokens, kinds, bags, clamped):
        found = self.words(tokens.long()) + self.few(tokens.view(tokens.shape).to(torch.int64)[:, :])
        found = found + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        found = found + functional.embedding(kinds, self.kinds.weight)
        found = found + self.bags(bags).unsqueeze(1) + self.words(clamped.clamp(0, 10))
        return found.sum(1)
"""
INDICES = (
    TensorSpec("TOKENS", "INT32", (-1,)),
    TensorSpec("KINDS", "INT64", (-1,)),
    TensorSpec("BAGS", "INT64", (3,)),
    TensorSpec("CLAMPED", "INT64", (-1,)),
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(NET)
    return tmp_path


@pytest.fixture
def indexing(tmp_path: Path) -> Path:
    (tmp_path / "indexing.py").write_text(INDEXING)
    return tmp_path


def indexing_model(home: Path, inputs: tuple[TensorSpec, ...], model: str = "indexing.py:Net") -> Any:
    files = ModelFiles("m", "torch", {"model": model}, inputs, (), 4, home)
    return backends.get("torch")(files, Place())


@pytest.mark.parametrize("scripted", [False, True])
def test_inputs_that_index_an_embedding_are_limited_to_its_rows(indexing: Path, scripted: bool) -> None:
    if scripted:
        space: dict[str, Any] = {"__name__": "indexing"}
        source = indexing / "indexing.py"
        exec(compile(source.read_text(), str(source), "exec"), space)
        torch.jit.save(torch.jit.trace(space["Net"]().eval(), _indices()), str(indexing / "net.pt"))
    model = indexing_model(indexing, INDICES, "net.pt" if scripted else "indexing.py:Net")
    assert [spec.values for spec in model.inputs] == [(0, 49), (0, 1), (0, 29), None]
    assert model.notes[0] == (
        "input TOKENS takes values from 0 to 49, as an embedding of 50 rows is indexed with it"
    )
    assert (len(model.notes), model.warnings) == (3, ())
    model.warm_up([1, 2])


def _indices() -> tuple[Any, ...]:
    kinds = torch.int32, torch.int64, torch.int64, torch.int64
    return tuple(torch.zeros(2, 3, dtype=kind) for kind in kinds)


def test_what_is_stated_stays_and_is_warned_of_where_it_is_more(indexing: Path) -> None:
    tokens, kinds, *others = INDICES
    stated = replace(tokens, values=(0, 30521)), replace(kinds, values=(1, 1)), *others
    model = indexing_model(indexing, stated)
    assert [spec.values for spec in model.inputs] == [(0, 30521), (1, 1), (0, 29), None]
    (warning,) = model.warnings
    assert warning.startswith("input TOKENS takes values from 0 to 30521: expected no more than 0 to 49")
    assert model.example_inputs[0].values == (0, 49)
    model.warm_up([1, 4])  # what we make up has the rows that are there


def test_an_exported_program_tells_its_embeddings(tmp_path: Path) -> None:
    class Sum(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.words = torch.nn.Embedding(77, 4)

        def forward(self, tokens: Any) -> Any:
            return self.words(tokens).sum(1)

    shapes = ({0: torch.export.Dim("batch", max=64)},)
    example = (torch.zeros(2, 8, dtype=torch.long),)
    torch.export.save(
        torch.export.export(Sum().eval(), example, dynamic_shapes=shapes), str(tmp_path / "net.pt2")
    )
    model = indexing_model(tmp_path, (), "net.pt2")
    assert model.inputs == (TensorSpec("tokens", "INT64", (8,), (0, 76)),)


def test_a_model_without_whole_inputs_is_not_tried(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def tried(*_: Any) -> None:
        raise AssertionError("nobody needs this")

    monkeypatch.setattr(torch_backend.embeddings, "indexed_rows", tried)
    files = ModelFiles("m", "torch", {"model": "net.py:Net"}, (X,), (), 4, home)
    assert backends.get("torch")(files, Place()).inputs == (X,)
