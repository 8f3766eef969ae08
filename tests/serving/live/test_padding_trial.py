"""A trial finds the models whose answers padding changes, whatever runs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astrarium.serving.live.backends import backends
from astrarium.serving.live.backends.contract import ModelFiles, Place
from astrarium.serving.live.backends.emulated import EmulatedModel
from astrarium.serving.live.fills import marked
from astrarium.serving.live.tensors import TensorSpec
from astrarium.serving.live.worker.padding import Padding
from astrarium.serving.live.worker.padding_trial import Verdict, deviation, tried, warnings

X = TensorSpec("X", "FP32", (-1,))
WHOLE = TensorSpec("X", "INT64", (-1,))
LENGTHS = TensorSpec("LENGTHS", "INT32", ())
MASK = TensorSpec("MASK", "FP32", (-1,))
Y = TensorSpec("Y", "FP32", ())
FOLLOWING = TensorSpec("Y", "FP32", (-1,))
INDEX = TensorSpec("Y", "INT64", ())
CODE = """
import numpy as np


def mean(X):
    return X.mean(axis=1)

def total(X):
    return X.sum(axis=1)

def largest(X):
    return X.max(axis=1)

def smallest(X):
    return X.min(axis=1)

def place(X):
    return X.argmax(axis=1)

def doubled(X):
    return 2 * X

def shares(X):
    return np.exp(X) / np.exp(X).sum(axis=1, keepdims=True)

def repeated(X):
    return np.repeat(X, 2, axis=1)

def dice(X):
    return np.random.rand(len(X)).astype("f4")

def nervous(X):
    return X.sum(axis=1) * (1 + 1e-6 * np.random.rand(len(X))).astype("f4")

def coarse(X):
    return X.astype("f2").sum(axis=1, dtype="f2").astype("f4") * (1 + 1e-3 * (len(X) > 1))

def never_last(X):
    mean = X.mean(axis=1)
    return np.stack([mean, -mean, np.full_like(mean, -1e9)], axis=1)

def above(X):
    return (X.mean(axis=1) > 0.25).astype(np.int64)

def far_above(X):
    return (X.mean(axis=1) > 1e6).astype(np.int64)

def every(X):
    return X.all(axis=1)

def alone(X):
    assert len(X) < 2, "one at a time"
    return X.sum(axis=1)

def company(X):
    assert len(X) > 1, "in company only"
    return X.sum(axis=1)

def by_length(X, LENGTHS):
    return X.sum(axis=1) / LENGTHS

def by_mask(X, MASK):
    return (X * MASK).sum(axis=1) / MASK.sum(axis=1)

def idle_mask(X, MASK):
    return X.mean(axis=1)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "models.py").write_text(CODE)
    return tmp_path


def verdict_of(
    folder: Path,
    name: str,
    inputs: tuple[TensorSpec, ...] = (X,),
    output: TensorSpec = Y,
    **filled: str,
) -> Verdict:
    specs = marked(inputs, filled.get("lengths", ""), filled.get("mask", ""))
    files = ModelFiles("m", "python", {"model": f"models.py:{name}"}, specs, (output,), 8, folder)
    model = backends.get("python")(files, Place())
    return tried(model, Padding(specs), 8, careful=False)


CASES: list[tuple[str, dict[str, Any], str]] = [
    ("total", {}, ""),
    ("total", {"inputs": (WHOLE,), "output": INDEX}, ""),
    ("doubled", {"output": FOLLOWING}, ""),
    ("by_length", {"inputs": (X, LENGTHS), "lengths": "LENGTHS"}, ""),
    ("by_mask", {"inputs": (X, MASK), "mask": "MASK"}, ""),
    ("nervous", {}, ""),
    ("coarse", {}, ""),
    ("mean", {}, "output Y of an input of length 1 changes by"),
    ("mean", {"inputs": (TensorSpec("X", "FP32", (-1,), ranges=((32, 40),)),)}, "of length 32"),
    ("largest", {}, "when padded to length 8"),
    ("largest", {"inputs": (WHOLE,), "output": INDEX}, "changes when padded"),
    ("smallest", {}, "changes by"),
    ("place", {"output": INDEX}, "changes when padded"),
    ("shares", {"output": FOLLOWING}, "changes by"),
    ("repeated", {"output": FOLLOWING}, "output Y is not as long as input X"),
    ("dice", {}, "it answers the same request in different ways"),
    ("never_last", {"output": TensorSpec("Y", "FP32", (3,))}, "changes by"),
    ("above", {"output": INDEX}, "changes when padded"),
    ("far_above", {"output": INDEX}, "it answers all that was tried alike, which shows nothing"),
    (
        "every",
        {"inputs": (TensorSpec("X", "BOOL", (-1,)),), "output": TensorSpec("Y", "BOOL", ())},
        "changes",
    ),
    ("alone", {}, "it failed on a batch of equal lengths: models.py"),
    ("company", {}, "it failed on an input of length 1: models.py"),
    ("idle_mask", {"inputs": (X, MASK), "mask": "MASK"}, "changes by"),
]


@pytest.mark.parametrize(
    ("name", "how", "reason"), CASES, ids=[f"{name}-{at}" for at, (name, *_) in enumerate(CASES)]
)
def test_padding_is_found_to_change_answers_or_not(
    folder: Path, name: str, how: dict[str, Any], reason: str
) -> None:
    verdict = verdict_of(folder, name, **how)
    assert verdict.padding == ("changes" if reason else "safe")
    assert reason in verdict.reason


def test_a_model_without_open_dimensions_is_not_tried(folder: Path) -> None:
    assert verdict_of(folder, "mean", (TensorSpec("X", "FP32", (3,)),)) == Verdict()


def test_emulated_models_need_no_trial() -> None:
    model = EmulatedModel(ModelFiles("m", "emulated", {"table": [0, 1]}), Place())
    assert tried(model, Padding(model.inputs), 8, careful=True) == Verdict("safe")


def test_people_are_told_what_to_add() -> None:
    specs = marked((X, MASK), "", "MASK")
    (plain,) = warnings(Verdict("changes", "so it was"), Padding((X,)))
    assert "only requests of equal lengths run together: so it was; " in plain
    assert "`mask: NAME` or `lengths: NAME`" in plain
    (masked,) = warnings(Verdict("changes", "so it was"), Padding(specs))
    assert "`mask: NAME`" not in masked
    assert "`lengths: NAME`" in masked
    assert warnings(Verdict("safe"), Padding((X,))) == []


def test_an_onnx_model_is_tried_like_any_other(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    for name, operator in (("mean", "ReduceMean"), ("total", "ReduceSum")):
        x = helper.make_tensor_value_info("X", onnx.TensorProto.FLOAT, ["batch", "length"])
        y = helper.make_tensor_value_info("Y", onnx.TensorProto.FLOAT, ["batch"])
        axes = helper.make_tensor("axes", onnx.TensorProto.INT64, [1], [1])
        node = helper.make_node(operator, ["X", "axes"], ["Y"], keepdims=0)
        graph = helper.make_graph([node], name, [x], [y], [axes])
        opset = [helper.make_opsetid("", 18)]
        onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), tmp_path / f"{name}.onnx")
    verdicts = []
    for name in ("mean", "total"):
        files = ModelFiles("m", "onnx", {"model": f"{name}.onnx"}, max_batch=8, base=tmp_path)
        model = backends.get("onnx")(files, Place())
        verdicts.append(tried(model, Padding(model.inputs), 8, careful=True).padding)
    assert verdicts == ["changes", "safe"]


def test_a_torch_module_is_tried_like_any_other(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code = "import torch\nclass Mean(torch.nn.Module):\n    def forward(self, x, *mask):\n        "
    code += "return x.mean(1) if not mask else (x * mask[0]).sum(1) / mask[0].sum(1)\n"
    (tmp_path / "net.py").write_text(code)
    verdicts = []
    for inputs, mask in (((X,), ""), ((X, MASK), "MASK")):
        specs = marked(inputs, "", mask)
        files = ModelFiles("m", "torch", {"model": "net.py:Mean"}, specs, (Y,), 8, tmp_path, mask=mask)
        model = backends.get("torch")(files, Place())
        verdicts.append(tried(model, Padding(model.inputs), 8, careful=False).padding)
    assert verdicts == ["changes", "safe"]


@pytest.mark.parametrize(
    ("datatype", "one", "other", "apart"),
    [
        ("FP32", [1.0, 2.0], [1.0, 2.5], 0.25),
        ("FP32", [1.0, 4.0], [2.0, 4.0], 0.25),
        ("FP32", [1.0, -1e9], [2.0, -1e9], 1 / 16),  # a constant says nothing of how large a change is
        ("FP32", [1.0, -np.inf], [2.0, -np.inf], 1.0),
        ("FP32", [0.0, -1e9], [1.0, -1e9], 1 / 8),
        ("FP32", [float("nan"), 1.0], [float("nan"), 1.0], 0.0),
        ("FP32", [1.0], [float("nan")], float("inf")),
        ("FP32", [0.0], [1e-9], float("inf")),
        ("INT64", [1.0, 2.0], [1.0, 3.0], 0.5),
        ("FP32", [1.0], [1.0, 2.0], float("inf")),
    ],
)
def test_how_far_answers_are_apart(datatype: str, one: list[float], other: list[float], apart: float) -> None:
    assert deviation(datatype, np.array(one), np.array(other)) == pytest.approx(apart)
