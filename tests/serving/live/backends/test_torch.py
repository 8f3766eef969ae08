"""PyTorch behind the contract, on the processor; what a GPU does is tested in tests/gpu."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astrarium.core.errors import InputError
from astrarium.serving.live.backends import backends, batches, checked_options
from astrarium.serving.live.backends.contract import Batch, ModelFailed, ModelFiles, Place
from astrarium.serving.live.backends.torch import graph_sizes
from astrarium.serving.live.backends.torch.graph_shapes import shapes_of
from astrarium.serving.live.tensors import BF16, DATATYPES, TensorSpec, to_bfloat16
from astrarium.serving.live.worker.packing import together
from astrarium.serving.live.worker.padding_trial import tried
from tests.serving.live.backends.torch_models import NET, X, files, load, net, rows

torch = pytest.importorskip("torch")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(NET)
    return tmp_path


def export(home: Path, name: str = "net.pt2", **keywords: Any) -> str:
    shapes = keywords.pop("shapes", ({0: torch.export.Dim("batch", min=1, max=512)},))
    program = torch.export.export(net(home), (torch.zeros(2, 4),), dynamic_shapes=shapes)
    torch.export.save(program, str(home / name))
    return name


def script(home: Path) -> str:
    torch.jit.save(torch.jit.trace(net(home), torch.zeros(2, 4)), str(home / "net.pt"))
    return "net.pt"


@pytest.mark.parametrize("form", ["net.py:Net", "net.pt2", "net.pt"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_form_gives_the_numbers_of_the_module(home: Path, form: str) -> None:
    if form != "net.py:Net":
        export(home) if form == "net.pt2" else script(home)
    model = load(home, form)
    assert model.inputs == (X,)
    assert model.outputs == (TensorSpec("OUTPUT", "FP32", (3,)),)
    model.warm_up([1, 2])
    for size in (1, 3, 8):
        batch = rows(size)
        with torch.no_grad():
            wanted = net(home)(torch.from_numpy(batch.inputs["x"])).numpy()
        assert model.run(batch).outputs["OUTPUT"] == pytest.approx(wanted, abs=1e-6)
    model.close()


def test_an_exported_program_tells_its_inputs(home: Path) -> None:
    assert load(home, export(home), inputs=()).inputs == (X,)


def test_an_exported_program_needs_an_open_batch(home: Path) -> None:
    with pytest.raises(InputError, match=r"exported with a dynamic first dimension.*x\[2, 4\]"):
        load(home, export(home, shapes=None), inputs=())


def test_keywords_of_an_exported_program_are_kept(home: Path) -> None:
    class Sum(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any, scale: Any) -> Any:
            return x * scale

    batch = torch.export.Dim("batch", min=1, max=64)
    keywords = {"scale": torch.ones(2, 4)}
    program = torch.export.export(
        Sum(), (torch.ones(2, 4),), kwargs=keywords, dynamic_shapes={"x": {0: batch}, "scale": {0: batch}}
    )
    torch.export.save(program, str(home / "sum.pt2"))
    model = load(home, "sum.pt2", inputs=())
    arrays = {"x": np.full((3, 4), 2, np.float32), "scale": np.full((3, 4), 5, np.float32)}
    assert (model.run(Batch(3, arrays)).outputs["OUTPUT"] == 10).all()


def test_outputs_are_found_out_by_trying(home: Path) -> None:
    inputs = (TensorSpec("tokens", "INT64", (-1,)), TensorSpec("scale", "FP64", ()))
    model = load(home, "net.py:Two", inputs)
    assert model.outputs == (TensorSpec("TAGS", "INT64", (-1,)), TensorSpec("MEAN", "FP64", ()))
    arrays = {"tokens": np.array([[1, 2, 0], [3, 4, 5]]), "scale": np.array([1.0, 2.0])}
    outputs = model.run(Batch(2, arrays, (), {"tokens": [(2,), (3,)]})).outputs
    assert [item.tolist() for item in outputs["TAGS"]] == [[2, 4], [6, 8, 10]]
    assert outputs["MEAN"].tolist() == [1.0, 8.0]


def test_declared_outputs_are_chosen_by_name(home: Path) -> None:
    inputs = (TensorSpec("tokens", "INT64", (2,)), TensorSpec("scale", "FP32", ()))
    model = load(home, "net.py:Two", inputs, (TensorSpec("MEAN", "FP32", ()),))
    arrays = {"tokens": np.array([[1, 3]]), "scale": np.array([1], np.float32)}
    assert {name: value.tolist() for name, value in model.run(Batch(1, arrays)).outputs.items()} == {
        "MEAN": [2]
    }


def test_arguments_reach_what_makes_the_module(home: Path) -> None:
    assert load(home, "net.py:Net", arguments={"width": 7}).outputs[0].shape == (7,)


@pytest.mark.parametrize(("dtype", "comes_back", "close"), [("fp16", "FP16", 1e-2), ("bf16", "FP32", 5e-2)])
def test_lower_precision_stays_close(home: Path, dtype: str, comes_back: str, close: float) -> None:
    model = load(home, "net.py:Net", dtype=dtype)
    assert model.outputs[0].datatype == comes_back
    exact = load(home, "net.py:Net").run(rows(5)).outputs["OUTPUT"]
    outputs = model.run(rows(5)).outputs["OUTPUT"]
    assert outputs.astype(np.float32) == pytest.approx(exact, abs=close)
    assert not (outputs == exact).all()


def test_bf16_comes_and_goes_as_its_bits(home: Path) -> None:
    spec = TensorSpec("x", BF16, (4,))
    outputs = (TensorSpec("OUTPUT", BF16, (3,)),)
    model = load(home, "net.py:Net", (spec,), outputs, dtype="bf16")
    exact = load(home, "net.py:Net").run(rows(5)).outputs["OUTPUT"]
    output = model.run(Batch(5, {"x": to_bfloat16(rows(5).inputs["x"])})).outputs["OUTPUT"]
    assert output.dtype == DATATYPES[BF16]
    assert (output.view(np.uint16).astype(np.uint32) << 16).view(np.float32) == pytest.approx(exact, abs=5e-2)


def test_memory_that_cannot_be_written_is_no_obstacle(home: Path) -> None:
    batch = rows(2)
    batch.inputs["x"].flags.writeable = False
    load(home, "net.py:Net").run(batch)


def test_an_error_names_the_line_of_the_model(home: Path) -> None:
    model = load(home, "net.py:Fails", outputs=(TensorSpec("Y", "FP32", (4,)),))
    with pytest.raises(ModelFailed, match=r"net.py:24: RuntimeError: "):
        model.run(rows(2))


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("net.py:broken", {}, r"net.py:17: RuntimeError: no weights"),
    ("net.py:not_a_module", {}, "an nn.Module, not a int"),
    ("net.py:Net", {"inputs": (TensorSpec("x", "BYTES", (1,)),)}, r"inputs\[0\].datatype"),
    ("net.py:Net", {"inputs": ()}, "inputs: expected a list of the inputs"),
    ("none.pt2", {}, "there is none at"),
    ("bad.pt2", {}, "a file of torch.export.save"),
    ("zip.pt2", {}, "a file of torch.export.save; .*not in a subdirectory"),
    ("bad.pt", {}, "a file of torch.jit.save"),
    ("bad.pt2", {"dtype": "fp16"}, "dtype: expected to be left out for a .pt2"),
    ("net.py:Fails", {}, "outputs: expected a list of the outputs: a trial run"),
]


@pytest.mark.parametrize(("model", "options", "message"), BAD)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_cannot_be_loaded(
    home: Path, model: str, options: dict[str, Any], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("bad.pt2", "bad.pt"):
        (home / name).write_text("hello")
    with zipfile.ZipFile(home / "zip.pt2", "w") as archive:
        archive.writestr("a", "b")
    with pytest.raises(InputError, match=message) as caught:
        load(home, model, **options)
    assert not caplog.records  # what PyTorch has to say is in the error
    assert len(caught.value.expected) < 300


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there(home: Path) -> None:
    with pytest.raises(InputError, match="device: expected cpu, or one of the 0 GPUs"):
        backends.get("torch")(files(home, "net.py:Net"), Place(device="cuda:0"))


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"dtype": "fp8"}, "dtype"),
        ({"graphs": "yes"}, "graphs"),
        ({"graphs": [0]}, "graphs"),
        ({"compile": 1}, "compile"),
        ({"threads": 1.5}, "threads"),
        ({"graph": True}, "graph"),
        ({"model": "none.pt2"}, "model"),
        ({"model": "net.py"}, "model"),
    ],
)
def test_options_are_checked_before_anything_is_loaded(home: Path, options: Any, field: str) -> None:
    chosen = {"model": "net.py:Net", **options}
    with pytest.raises(InputError) as caught:
        checked_options(ModelFiles("m", "torch", chosen, (X,), base=home))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("graphs", "largest", "sizes"),
    [
        (True, 1, [1]),
        (True, 8, [1, 2, 3, 4, 6, 8]),
        (True, 10, [1, 2, 3, 4, 6, 8, 10]),
        (False, 8, []),
        ([4, 2], 8, [2, 4]),
    ],
)
def test_which_sizes_become_graphs(graphs: Any, largest: int, sizes: list[int]) -> None:
    assert graph_sizes(ModelFiles("m", "torch", {"graphs": graphs}, max_batch=largest)) == sizes


PACKED = """
import torch


class Mean(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(50, 4)

    def forward(self, tokens, offsets):
        vectors = self.table(tokens)
        means = torch.segment_reduce(vectors, "mean", offsets=offsets, initial=0)
        return {"MEAN": means, "EACH": vectors.sum(dim=1)}
"""
TOKENS = TensorSpec("TOKENS", "INT64", (-1,), ranges=((1, 64),))
OFFSETS = TensorSpec("OFFSETS", "INT64", ())


def packed_mean(home: Path) -> Any:
    (home / "packed.py").write_text(PACKED)
    options = {"model": "packed.py:Mean"}
    files = ModelFiles("m", "torch", options, (TOKENS, OFFSETS), (), 8, home, offsets="OFFSETS", pack=True)
    return backends.get("torch")(files, Place())


def test_packed_items_are_answered_as_alone(home: Path) -> None:
    model = packed_mean(home)
    assert model.outputs == (TensorSpec("MEAN", "FP32", (4,)), TensorSpec("EACH", "FP32", (-1,)))
    assert model.inputs[0].values == (0, 49)
    model.warm_up([1, 8])
    assert tried(model, together(model.inputs), 8, careful=True).padding == "safe"
    chance = np.random.default_rng(0)
    items = [chance.integers(50, size=length) for length in chance.integers(1, 64, 8)]
    packed = model.run(batches.packed(model.inputs, {"TOKENS": items})).outputs
    for place, item in enumerate(items):
        alone = model.run(batches.packed(model.inputs, {"TOKENS": [item]})).outputs
        assert packed["MEAN"][place] == pytest.approx(alone["MEAN"][0], abs=1e-6)
        assert packed["EACH"][place].tolist() == alone["EACH"][0].tolist()


def test_without_a_range_no_graph_is_of_packed_batches(home: Path) -> None:
    inputs = tuple(replace(spec, ranges=()) for spec in packed_mean(home).inputs)
    shapes = shapes_of(ModelFiles("m", "torch", buckets=(8, 16), max_batch=4), inputs, sizes=[1, 4])
    assert (shapes.axis, dict(shapes.largest), shapes.packed) == (None, {}, ())
