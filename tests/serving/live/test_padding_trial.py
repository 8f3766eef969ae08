"""A trial finds the models whose answers padding changes, whatever runs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astrarium.serving.live.backends import backends
from astrarium.serving.live.backends.contract import Batch, LoadedModel, ModelFiles, Place, Result
from astrarium.serving.live.backends.emulated import EmulatedModel
from astrarium.serving.live.fills import axes_of, marked
from astrarium.serving.live.tensors import TensorSpec
from astrarium.serving.live.worker import trial_items
from astrarium.serving.live.worker.deviations import Positions, deviation
from astrarium.serving.live.worker.padding import Padding
from astrarium.serving.live.worker.padding_trial import Verdict, advice, tried, warnings
from astrarium.serving.live.worker.trial_items import longest_lengths

X = TensorSpec("X", "FP32", (-1,))
WHOLE = TensorSpec("X", "INT64", (-1,))
LENGTHS = TensorSpec("LENGTHS", "INT32", ())
MASK = TensorSpec("MASK", "FP32", (-1,))
Y = TensorSpec("Y", "FP32", ())
FOLLOWING = TensorSpec("Y", "FP32", (-1,))
INDEX = TensorSpec("Y", "INT64", ())
CLASS = TensorSpec("CLASS", "INT64", ())
SCALE = TensorSpec("SCALE", "FP32", ())
HALF = TensorSpec("Y", "FP16", ())
BOXES = TensorSpec("Y", "FP32", (3,))
PIXELS = TensorSpec("X", "FP32", (-1,), (0, 255))
IMAGE = TensorSpec("X", "UINT8", (3, -1, -1))
RANGED = TensorSpec("X", "FP32", (-1,), ranges=((1, 512),))
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

def pixels(X):
    return ((X.astype("f4") - 127) / 60).reshape(len(X), -1).mean(axis=1).astype("f2")

def total_f2(X):
    with np.errstate(over="ignore"):
        return X.sum(axis=1).astype("f2")

def windows(X):
    rows, length = X.shape
    filled = np.zeros((rows, -(-length // 128) * 128), "f4")
    filled[:, :length] = X
    return filled.mean(axis=1)

def scores_and_class(X):
    mean = X.mean(axis=1)
    classes = [2.04 * mean - 0.57, -2.56 * mean - 0.45, 0.42 * mean - 0.22]
    return X.sum(axis=1), np.stack(classes, axis=1).argmax(axis=1)

def total_and_version(X):
    return X.sum(axis=1), np.full(len(X), 7)

def total_and_scale(X):
    return X.sum(axis=1), np.full(len(X), 7, "f4")

def boxes(X):
    last_bit = 1e-4 * (X.shape[1] % 2)
    columns = [1000 + X.sum(axis=1) + last_bit, 2000 - X.sum(axis=1), 0.1 * np.tanh(X.mean(axis=1))]
    return np.stack(columns, axis=1).astype("f4")

def total_and_next_to_nothing(X):
    noise = 1e-7 * (X.shape[1] % 2) * np.ones(len(X), "f4")
    return np.stack([X.sum(axis=1) * (1 + noise), noise], axis=1)

def flipped_once(X):
    large = X.max(axis=1) >= 2
    return (large & (X.min(axis=1) >= 1)) ^ (large & (len(X) == 4) & (np.arange(len(X)) == 0))

def flipped_anyway(X):
    odd = (len(X) == 3) & (np.arange(len(X)) == 0)
    return np.rint(X.sum(axis=1)).astype(np.int64) ^ odd
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "models.py").write_text(CODE)
    return tmp_path


def verdict_of(
    folder: Path,
    name: str,
    inputs: tuple[TensorSpec, ...] = (X,),
    output: TensorSpec | tuple[TensorSpec, ...] = Y,
    careful: bool = False,
    **filled: str,
) -> Verdict:
    specs = marked(inputs, filled.get("lengths", ""), filled.get("mask", ""))
    model = loaded(folder, name, specs, output)
    return tried(model, Padding(specs), 8, careful)


def loaded(
    folder: Path,
    name: str,
    specs: tuple[TensorSpec, ...],
    output: TensorSpec | tuple[TensorSpec, ...] = Y,
) -> LoadedModel:
    outputs = output if isinstance(output, tuple) else (output,)
    files = ModelFiles("m", "python", {"model": f"models.py:{name}"}, specs, outputs, 8, folder)
    return backends.get("python")(files, Place())


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
    ("pixels", {"inputs": (PIXELS,), "output": HALF}, "changes by"),
    ("pixels", {"inputs": (IMAGE,), "output": HALF, "careful": True}, "changes by"),
    ("pixels", {"inputs": (TensorSpec("X", "UINT8", (-1,)),), "output": HALF}, "changes by"),
    ("total_f2", {"inputs": (TensorSpec("X", "FP32", (-1,), (0, 60000)),), "output": HALF}, ""),
    ("windows", {"inputs": (RANGED,)}, "output Y of an input of length 1 changes by"),
    ("windows", {"inputs": (TensorSpec("X", "FP32", (-1,), ranges=((1, 100),)),)}, ""),
    ("total", {"inputs": (RANGED,)}, ""),
    ("scores_and_class", {"output": (Y, CLASS)}, "output CLASS of an input of length"),
    ("total_and_version", {"output": (Y, CLASS)}, "output CLASS is the same in all that was tried"),
    ("total_and_scale", {"output": (Y, SCALE)}, ""),
    ("boxes", {"output": BOXES}, "output Y[..., 2] of an input of length 1 changes by"),
    ("total_and_next_to_nothing", {"output": TensorSpec("Y", "FP32", (2,))}, ""),
    ("flipped_once", {"inputs": (WHOLE,), "output": TensorSpec("Y", "BOOL", ())}, "changes when padded"),
    ("flipped_anyway", {"output": INDEX}, ""),
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


@pytest.mark.parametrize(
    ("spec", "at_most"),
    [(X, 30), (RANGED, 45), (TensorSpec("X", "FP32", (-1,), (0, 255), ranges=((1, 512),)), 73)],
)
def test_a_load_does_not_wait_long_for_the_trial(
    folder: Path, monkeypatch: pytest.MonkeyPatch, spec: TensorSpec, at_most: int
) -> None:
    model = loaded(folder, "total", (spec,))
    run = model.run
    sizes: list[int] = []

    def counted(batch: Batch) -> Result:
        sizes.append(batch.inputs["X"].size)
        return run(batch)

    monkeypatch.setattr(model, "run", counted)
    assert tried(model, Padding((spec,)), 8, careful=True) == Verdict("safe")
    assert len(sizes) <= at_most
    assert max(sizes) <= 2 * 512


@pytest.mark.parametrize(
    ("inputs", "output", "buckets", "longest"),
    [
        (X, Y, (), None),
        (X, Y, ((16, 64),), 64),
        (RANGED, Y, (), 512),
        (RANGED, Y, ((16, 64),), 512),
        (TensorSpec("X", "FP32", (-1,), ranges=((1, 10**6),)), Y, (), 4096),
        (TensorSpec("X", "FP32", (-1, 1024), ranges=((1, 10**6), None)), Y, (), 1024),
        (RANGED, TensorSpec("Y", "FP32", (-1, 30000)), (), 256),
        (TensorSpec("X", "FP32", (-1,), ranges=((1, 40),)), Y, (), None),
    ],
)
def test_the_longest_item_is_bounded(
    inputs: TensorSpec, output: TensorSpec, buckets: tuple[tuple[int, ...], ...], longest: int | None
) -> None:
    lengths = longest_lengths((inputs,), (output,), buckets)
    assert lengths == (None if longest is None else [longest])


def test_a_careful_trial_makes_up_whole_numbers_of_images_only() -> None:
    chance = np.random.default_rng(0)
    row, image = TensorSpec("X", "UINT8", (-1,)), IMAGE
    for careful, spec, most in ((True, row, 1), (False, row, 255), (True, image, 255)):
        kinds = list(trial_items.numbers([spec], careful))
        made = [
            item["X"] for kind in kinds for item in trial_items.items(kind, axes_of([spec]), None, chance)
        ]
        largest = max(int(array.max()) for array in made)
        assert largest == most if most == 1 else largest > 200


def test_numbers_are_of_the_whole_range_and_of_its_far_end() -> None:
    kinds = list(trial_items.numbers([TensorSpec("X", "FP32", (1000,), (-20, 255))], careful=True))
    chance = np.random.default_rng(0)
    made = [trial_items.one(kind.specs[0], chance, kind.near) for kind in kinds]
    *near, whole, far = [(float(array.min()), float(array.max())) for array in made]
    assert max(high for _, high in near) <= 3
    assert list(whole) == pytest.approx([-20, 255], abs=3)
    assert list(far) == pytest.approx([255 - 275 / 4, 255], abs=3)


def test_a_model_without_open_dimensions_is_not_tried(folder: Path) -> None:
    assert verdict_of(folder, "mean", (TensorSpec("X", "FP32", (3,)),)) == Verdict()


def test_emulated_models_need_no_trial() -> None:
    model = EmulatedModel(ModelFiles("m", "emulated", {"table": [0, 1]}), Place())
    assert tried(model, Padding(model.inputs), 8, careful=True) == Verdict("safe")


def test_rounding_at_one_position_is_that_of_its_own_size() -> None:
    answers = [np.array(numbers) for numbers in ([1000.0, 0.1, 0.2], [999.0, 0.2, 0.1])]
    positions = Positions("FP32", answers)
    assert positions.changed(answers[0], np.array([1000.1, 0.101, 0.2])) is None, "a last digit of 1000"
    half = positions.changed(answers[0], np.array([1000.1, 0.2, 0.2]))
    assert half is not None
    assert list(half) == pytest.approx([1, 0.5])
    positions.note(answers[1], np.array([999.0, 0.2, 0.13]))  # another position of the same size counts, too
    assert positions.changed(answers[0], np.array([1000.1, 0.2, 0.2])) is None
    assert positions.changed(answers[0], np.array([1000.1, 0.3, 0.2])) is not None


def test_people_are_told_what_to_add() -> None:
    specs = marked((X, MASK), "", "MASK")
    (plain,) = warnings(Verdict("changes", "so it was"), Padding((X,)))
    assert "only requests of equal lengths run together: so it was; " in plain
    assert "`mask: NAME` or `lengths: NAME`" in plain
    (masked,) = warnings(Verdict("changes", "so it was"), Padding(specs))
    assert "`mask: NAME`" not in masked
    assert "`lengths: NAME`" in masked
    (honoured,) = warnings(
        Verdict("changes", "so it was"), Padding(marked((X, MASK, LENGTHS), "LENGTHS", "MASK"))
    )
    assert honoured.endswith("so it was; its answers must not depend on what mask and lengths say is padding")
    assert warnings(Verdict("safe"), Padding((X,))) == []
    assert advice(Verdict("safe"), Padding((X,))) == ""


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
