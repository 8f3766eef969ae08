"""ONNX Runtime behind the contract, and the trained model of the examples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astrarium.core.errors import InputError
from astrarium.serving.live.backends import backends, batches, checked_options
from astrarium.serving.live.backends.contract import Batch, ModelFailed, ModelFiles, Place
from astrarium.serving.live.tensors import TensorSpec
from tests.support.paths import ROOT

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

MODELS = ROOT / "examples" / "models"


def write(
    path: Path, shape: list[Any], operator: str = "Neg", kind: str = "FLOAT", out: list[Any] | None = None
) -> Path:
    """A model with one operator, from X to Y."""
    helper = onnx.helper
    kinds = getattr(onnx.TensorProto, kind)
    x, y = (
        helper.make_tensor_value_info(name, kinds, sizes)
        for name, sizes in (("X", shape), ("Y", out or shape))
    )
    graph = helper.make_graph([helper.make_node(operator, ["X"], ["Y"])], "one", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, str(path))
    return path


def load(path: Path, inputs: Any = (), outputs: Any = (), **options: Any) -> Any:
    files = ModelFiles("m", "onnx", {"model": str(path), **options}, inputs, outputs, 8)
    return backends.get("onnx")(files, Place())


def test_the_file_tells_its_tensors(tmp_path: Path) -> None:
    model = load(write(tmp_path / "m.onnx", ["batch", 2, "length"]))
    assert model.inputs == (TensorSpec("X", "FP32", (2, -1)),)
    assert model.outputs == (TensorSpec("Y", "FP32", (2, -1)),)


def test_a_batch_of_any_size_runs(tmp_path: Path) -> None:
    model = load(write(tmp_path / "m.onnx", ["batch", 2]))
    model.warm_up([1, 4])
    for size in (1, 3, 8):
        values = np.arange(size * 2, dtype=np.float32).reshape(size, 2)
        assert (model.run(Batch(size, {"X": values})).outputs["Y"] == -values).all()
    model.close()


def test_inputs_that_cannot_be_written_run_as_others(tmp_path: Path) -> None:
    model = load(write(tmp_path / "m.onnx", ["batch", 2]))
    values = np.frombuffer(np.arange(2, dtype=np.float32).tobytes(), np.float32).reshape(1, 2)
    assert model.run(Batch(1, {"X": values})).outputs["Y"].tolist() == [[0, -1]]
    assert values.tolist() == [[0, 1]]


def test_answers_follow_the_length_of_each_item(tmp_path: Path) -> None:
    model = load(write(tmp_path / "m.onnx", ["batch", "length"]))
    padded = np.array([[1, 2, 0], [3, 4, 5]], np.float32)
    outputs = model.run(Batch(2, {"X": padded}, (), {"X": [(2,), (3,)]})).outputs["Y"]
    assert [item.tolist() for item in outputs] == [[-1, -2], [-3, -4, -5]]


def test_texts_go_in_and_come_out_as_bytes(tmp_path: Path) -> None:
    model = load(write(tmp_path / "m.onnx", ["batch", 1], "Identity", "STRING"))
    assert model.inputs[0].datatype == "BYTES"
    outputs = model.run(Batch(1, {"X": np.array([["größer".encode()]], object)})).outputs["Y"]
    assert outputs.tolist() == [["größer"]]


def test_a_text_that_is_no_text_does_not_fail_its_batch(tmp_path: Path) -> None:
    model = load(write(tmp_path / "m.onnx", ["batch", 1], "Identity", "STRING"))
    sent = np.array([[b"bl\xff\xfe"], ["größer".encode()], [b""]], object)
    outputs = model.run(Batch(3, {"X": sent})).outputs["Y"]
    assert outputs.tolist() == [["bl\ufffd\ufffd"], ["größer"], [""]]


@pytest.mark.parametrize("shape", [[1, 2], [4, 2]])
def test_a_fixed_first_dimension_is_refused(tmp_path: Path, shape: list[Any]) -> None:
    with pytest.raises(InputError, match=r"first dimension is the batch and open.*batched: false.*X\["):
        load(write(tmp_path / "m.onnx", shape))


@pytest.mark.parametrize(("shape", "item"), [([1, 2], (2,)), ([4, 2], (4, 2))])
def test_such_a_model_runs_item_by_item_if_told(tmp_path: Path, shape: list[Any], item: Any) -> None:
    model = load(write(tmp_path / "m.onnx", shape), batched=False)
    assert model.inputs == (TensorSpec("X", "FP32", item),)
    values = np.arange(3 * np.prod(item), dtype=np.float32).reshape(3, *item)
    assert (model.run(Batch(3, {"X": values})).outputs["Y"] == -values).all()


def test_declared_tensors_may_be_narrower_and_fewer(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", ["batch", "length"])
    assert load(path, (TensorSpec("X", "FP32", (5,)),)).inputs[0].shape == (5,)


@pytest.mark.parametrize(
    ("spec", "field", "right"),
    [
        (TensorSpec("IMAGE", "FP32", (2,)), "inputs[0].name", "one of X"),
        (TensorSpec("X", "FP64", (2,)), "inputs[0].datatype", "FP32, as in the model file"),
        (TensorSpec("X", "FP32", (3,)), "inputs[0].shape", "[2], as in the model file"),
    ],
)
def test_declared_tensors_must_be_those_of_the_file(
    tmp_path: Path, spec: TensorSpec, field: str, right: str
) -> None:
    with pytest.raises(InputError) as caught:
        load(write(tmp_path / "m.onnx", ["batch", 2]), (spec,))
    assert caught.value.field == field
    assert right in str(caught.value)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"threads": 0}, "threads"),
        ({"batched": "yes"}, "batched"),
        ({"thread": 1}, "thread"),
        ({"providers": "CPU"}, "providers"),
        ({"model": "none.onnx"}, "model"),
        ({"model": None}, "model"),
    ],
)
def test_options_are_checked_before_anything_is_loaded(tmp_path: Path, options: Any, field: str) -> None:
    chosen = {"model": str(write(tmp_path / "m.onnx", ["batch", 2])), **options}
    with pytest.raises(InputError) as caught:
        checked_options(ModelFiles("m", "onnx", chosen, base=tmp_path))
    assert caught.value.field == field


def test_a_provider_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"providers\[0\]: expected one of .*CPUExecutionProvider"):
        load(write(tmp_path / "m.onnx", ["batch", 2]), providers=["NoSuchProvider"])


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_text("hello")
    with pytest.raises(InputError, match="a model that ONNX Runtime can load"):
        load(tmp_path / "m.onnx")


def test_a_failing_run_says_what_the_runtime_says(tmp_path: Path) -> None:
    model = load(write(tmp_path / "m.onnx", ["batch", 2]))
    with pytest.raises(ModelFailed, match=r"(?s)ONNX Runtime: .*index: 1 Got: 5 Expected: 2"):
        model.run(Batch(1, {"X": np.zeros((1, 5), np.float32)}))


def test_the_digits_of_the_examples_are_read() -> None:
    """50 of the digits that were held back from training: at least 48 of them."""
    model = load(MODELS / "digits.onnx")
    assert model.inputs == (TensorSpec("IMAGE", "FP32", (64,)),)
    assert model.outputs == (TensorSpec("PROBABILITIES", "FP32", (10,)),)
    rows = np.loadtxt(MODELS / "digits.csv", delimiter=",")
    outputs = model.run(Batch(50, {"IMAGE": rows[:, 1:].astype(np.float32)})).outputs["PROBABILITIES"]
    assert outputs.sum(axis=1) == pytest.approx(1, abs=1e-5)
    assert (outputs.argmax(axis=1) == rows[:, 0]).sum() >= 48


def test_the_request_of_the_examples_is_the_first_of_them() -> None:
    (tensor,) = json.loads((MODELS / "digit.json").read_text())["inputs"]
    assert (tensor["name"], tensor["datatype"], tensor["shape"]) == ("IMAGE", "FP32", [1, 64])
    label, *pixels = np.loadtxt(MODELS / "digits.csv", delimiter=",")[0].tolist()
    assert tensor["data"] == pixels
    values = np.array([tensor["data"]], np.float32)
    loaded = load(MODELS / "digits.onnx").run(Batch(1, {"IMAGE": values})).outputs["PROBABILITIES"]
    assert loaded.argmax() == label


def packed_files(folder: Path, outputs: Any, **options: Any) -> ModelFiles:
    """A model of packed items: the numbers, negated, and how many of them each item has."""
    helper, kinds = onnx.helper, onnx.TensorProto
    tensors = [
        helper.make_tensor_value_info(name, kind, [size])
        for name, kind, size in (
            ("X", kinds.FLOAT, "total"),
            ("OFFSETS", kinds.INT64, "ends"),
            ("Y", kinds.FLOAT, "total"),
            ("LONG", kinds.INT64, "batch"),
        )
    ]
    numbers = {"first": 0, "second": 1, "last": -1, "end": 1 << 30}
    constants = [helper.make_tensor(name, kinds.INT64, [1], [number]) for name, number in numbers.items()]
    nodes = [
        helper.make_node("Neg", ["X"], ["Y"]),
        helper.make_node("Slice", ["OFFSETS", "second", "end"], ["ENDS"]),
        helper.make_node("Slice", ["OFFSETS", "first", "last"], ["STARTS"]),
        helper.make_node("Sub", ["ENDS", "STARTS"], ["LONG"]),
    ]
    graph = helper.make_graph(nodes, "packed", tensors[:2], tensors[2:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, str(folder / "packed.onnx"))
    inputs = TensorSpec("X", "FP32", (-1,), ranges=((1, 64),)), TensorSpec("OFFSETS", "INT64", ())
    options = {"model": str(folder / "packed.onnx"), **options}
    return ModelFiles("m", "onnx", options, inputs, outputs, 8, offsets="OFFSETS", pack=True)


def test_packed_items_come_and_go_one_after_another(tmp_path: Path) -> None:
    outputs = TensorSpec("Y", "FP32", (-1,)), TensorSpec("LONG", "INT64", ())
    files = packed_files(tmp_path, outputs)
    checked_options(files)
    model: Any = backends.get("onnx")(files, Place())
    assert [spec.packed for spec in model.inputs] == [True, False]
    items = [np.ones(1, np.float32), np.arange(3, dtype=np.float32)]
    answer = model.run(batches.packed(model.inputs, {"X": items})).outputs
    assert [item.tolist() for item in answer["Y"]] == [[-1], [0, -1, -2]]
    assert answer["LONG"].tolist() == [1, 3]


def test_what_a_packed_file_cannot_tell_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="outputs: expected a list of the outputs: with `pack`"):
        checked_options(packed_files(tmp_path, ()))
    alone = packed_files(tmp_path, (TensorSpec("Y", "FP32", (-1,)),), batched=False)
    with pytest.raises(InputError, match="batched: expected true beside `pack`"):
        checked_options(alone)
