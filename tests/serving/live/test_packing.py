"""Items of unequal length run packed, one after another, and every answer is as if its item was alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astrarium.core.errors import InputError
from astrarium.serving.live.backends import backends, batches, checked_options, examples, own_requests
from astrarium.serving.live.backends.answers import result
from astrarium.serving.live.backends.contract import Batch, LoadedModel, ModelFailed, ModelFiles, Place
from astrarium.serving.live.fills import length_of, marked, sized
from astrarium.serving.live.packing import check_outputs, offsets_of, unlike
from astrarium.serving.live.tensors import Array, TensorSpec
from astrarium.serving.live.worker.inputs import UnequalItems
from astrarium.serving.live.worker.packing import Packing, together
from astrarium.serving.live.worker.padding import Padding, joined
from astrarium.serving.live.worker.padding_trial import Verdict, tried, warnings
from astrarium.serving.live.worker.repeated_order import RepeatedOrder

X = TensorSpec("X", "FP32", (-1,))
VECTORS = TensorSpec("X", "FP32", (-1, 3))
TYPES = TensorSpec("TYPES", "INT8", (-1,))
SCALE = TensorSpec("SCALE", "FP32", ())
OFFSETS = TensorSpec("OFFSETS", "INT32", ())
LENGTHS = TensorSpec("LENGTHS", "INT64", (1,))
Y = TensorSpec("Y", "FP32", ())
EACH = TensorSpec("Y", "FP32", (-1,))
CLASS = TensorSpec("Y", "INT64", ())
CODE = """
import numpy as np

def mean(X, OFFSETS):
    return np.add.reduceat(X, OFFSETS[:-1]) / np.diff(OFFSETS)

def mean_by_length(X, LENGTHS):
    ends = np.cumsum(LENGTHS[:, 0])
    return np.add.reduceat(X, ends - LENGTHS[:, 0]) / LENGTHS[:, 0]

def centred(X, OFFSETS):
    return X - np.repeat(mean(X, OFFSETS), np.diff(OFFSETS)).astype("f4")

def mean_of_all(X, OFFSETS):
    return np.full(len(OFFSETS) - 1, X.mean(), "f4")

def class_of_all(X, OFFSETS):
    return np.full(len(OFFSETS) - 1, X.mean() > 0.25, np.int64)

def sum_of_all(X, OFFSETS):
    return np.full(len(OFFSETS) - 1, np.rint(10 * X.sum()), np.int64)

def length_of_all(X, OFFSETS):
    return np.full(len(OFFSETS) - 1, len(X), np.int64)

def own_sum(X, OFFSETS):
    return np.rint(10 * np.add.reduceat(X, OFFSETS[:-1])).astype(np.int64)

def off_by_one(X, OFFSETS):
    return np.array([X[max(0, at - 1):end].sum() for at, end in zip(OFFSETS[:-1], OFFSETS[1:])], "f4")

def running(X, OFFSETS):
    return np.cumsum(X)

def as_rows(X, OFFSETS):
    return X.reshape(len(OFFSETS) - 1, -1).mean(axis=1)
"""


def specs_of(*inputs: TensorSpec, lengths: str = "") -> tuple[TensorSpec, ...]:
    offsets = "OFFSETS" if OFFSETS in inputs else ""
    return marked(inputs, lengths=lengths, offsets=offsets, pack=True)


PACKED = specs_of(X, OFFSETS)


def items_of(*lengths: int) -> UnequalItems:
    chance = np.random.default_rng(len(lengths))
    items = [chance.standard_normal(length).astype(np.float32) for length in lengths]
    return UnequalItems(len(lengths), {"X": items}, list(range(len(lengths))))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "models.py").write_text(CODE)
    return tmp_path


def load(folder: Path, name: str, output: TensorSpec = Y, inputs: Any = PACKED) -> LoadedModel:
    options = {"model": f"models.py:{name}"}
    files = ModelFiles("m", "python", options, inputs, (output,), 8, folder, pack=True)
    return backends.get("python")(files, Place())


def answers(model: LoadedModel, items: UnequalItems, padding: Padding) -> list[Array]:
    parts = padding.parts(items)
    return list(joined(parts, [model.run(part.batch) for part in parts]).outputs["Y"])


def test_items_lie_one_after_another() -> None:
    specs = specs_of(X, SCALE, OFFSETS, LENGTHS, lengths="LENGTHS")
    whole = UnequalItems(3, {**items_of(2, 1, 3).arrays, "SCALE": list(np.array([5, 6, 7], np.float32))})
    (part,) = replace(together(specs), allowed=True).parts(whole)
    assert list(part.batch.inputs) == ["X", "SCALE", "OFFSETS", "LENGTHS"]
    assert part.batch.inputs["X"].tolist() == np.concatenate(whole.arrays["X"]).tolist()
    assert part.batch.inputs["SCALE"].tolist() == [5, 6, 7]
    assert part.batch.inputs["OFFSETS"].tolist() == [0, 2, 3, 6]
    assert part.batch.inputs["OFFSETS"].dtype == np.int32
    assert part.batch.inputs["LENGTHS"].tolist() == [[2], [1], [3]]
    assert part.batch.lengths == [2, 1, 3]


def test_equal_items_are_packed_where_they_lie() -> None:
    stacked = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    batch = batches.alike(specs_of(VECTORS, OFFSETS), {"X": stacked}, [4, 5])
    assert batch.inputs["X"].shape == (4, 3)
    assert np.shares_memory(batch.inputs["X"], stacked)
    assert batch.inputs["OFFSETS"].tolist() == [0, 2, 4]
    assert (batch.size, list(batch.applications), list(batch.lengths)) == (2, [4, 5], [2, 2])
    assert length_of(specs_of(VECTORS, OFFSETS), batch.inputs) == 0


@pytest.mark.parametrize(
    ("name", "inputs", "output"),
    [
        ("mean", PACKED, Y),
        ("mean_by_length", specs_of(X, LENGTHS, lengths="LENGTHS"), Y),
        ("centred", PACKED, EACH),
    ],
)
def test_answers_are_those_of_items_alone(folder: Path, name: str, inputs: Any, output: TensorSpec) -> None:
    model = load(folder, name, output, inputs)
    padding = together(inputs)
    packing = replace(padding, allowed=True)
    chance = np.random.default_rng(3)
    for size in (1, 2, 7, 8):
        items = items_of(*chance.integers(1, 40, size).tolist())
        assert len(packing.parts(items)) == 1
        alone, packed = (answers(model, items, how) for how in (padding, packing))
        for one, other in zip(alone, packed, strict=True):
            assert other == pytest.approx(one, abs=1e-6)


def test_without_leave_every_item_runs_alone() -> None:
    parts = Packing(PACKED).parts(items_of(2, 3, 2))
    assert [list(part.places) for part in parts] == [[0], [1], [2]]
    assert [part.batch.inputs["OFFSETS"].tolist() for part in parts] == [[0, 2], [0, 3], [0, 2]]
    assert [list(part.batch.applications) for part in parts] == [[0], [1], [2]]
    equal = Batch(2, {"X": np.ones((2, 3), np.float32)}, [0, 0])
    assert [list(part.places) for part in Packing(PACKED).parts(equal)] == [[0], [1]]


def test_what_no_trial_has_tried_runs_alone() -> None:
    """An empty item, and one whose inputs disagree about how long it is."""
    specs = specs_of(X, TYPES, OFFSETS)
    types = [np.zeros(length, np.int8) for length in (2, 0, 5, 3)]
    items = UnequalItems(4, {**items_of(2, 0, 3, 3).arrays, "TYPES": types})
    assert [list(part.places) for part in Packing(specs, True).parts(items)] == [[0, 3], [1], [2]]
    uneven: dict[str, Array] = {"X": np.ones((2, 3), np.float32), "TYPES": np.ones((2, 4), np.int8)}
    assert [list(part.places) for part in Packing(specs, True).parts(Batch(2, uneven))] == [[0], [1]]


def test_inputs_of_unequal_length_are_told() -> None:
    specs = specs_of(X, SCALE, TYPES, OFFSETS)
    assert unlike(specs, [(1, 3), (1,), (1, 3)]) is None
    assert unlike(specs, [(1, 3), (1,), (1, 4)]) == (0, 2)


def test_an_open_output_comes_packed_and_the_others_by_item() -> None:
    batch = batches.packed(PACKED, items_of(1, 2).arrays)
    specs = EACH, TensorSpec("Z", "FP32", (4,))
    outputs = result({"Y": np.arange(3, dtype="f4"), "Z": np.ones((2, 4), "f4")}, specs, batch).outputs
    assert [item.tolist() for item in outputs["Y"]] == [[0], [1, 2]]
    assert np.shape(outputs["Z"]) == (2, 4)


@pytest.mark.parametrize("wrong", [np.ones(2, "f4"), np.ones((2, 3), "f4"), np.float32(1)])
def test_an_open_output_of_another_length_is_refused(wrong: Any) -> None:
    batch = batches.packed(PACKED, items_of(1, 2).arrays)
    with pytest.raises(ModelFailed, match=r"output Y has the shape .* instead of \[3\]"):
        result({"Y": wrong}, [EACH], batch)


CASES: list[tuple[str, TensorSpec, str]] = [
    ("mean", Y, ""),
    ("centred", EACH, ""),
    ("mean_of_all", Y, "changes by"),
    ("class_of_all", CLASS, "changes when packed with others"),
    ("own_sum", CLASS, ""),
    ("sum_of_all", CLASS, "changes when packed with others"),
    ("length_of_all", CLASS, "changes when packed with others"),
    ("off_by_one", Y, "changes by"),
    ("running", EACH, "when packed with others"),
    ("as_rows", Y, "it failed on a packed batch: models.py"),
]


@pytest.mark.parametrize(("name", "output", "reason"), CASES, ids=[name for name, *_ in CASES])
def test_a_model_that_mixes_up_its_items_is_found(
    folder: Path, name: str, output: TensorSpec, reason: str
) -> None:
    verdict = tried(load(folder, name, output), together(PACKED), 8, careful=False)
    assert verdict.padding == ("changes" if reason else "safe"), verdict
    assert reason in verdict.reason


def test_people_are_told_that_items_run_one_by_one() -> None:
    (said,) = warnings(Verdict("changes", "so it was"), Packing(PACKED))
    assert "requests run one by one: so it was; a packed model must keep items apart" in said
    assert warnings(Verdict("safe"), Packing(PACKED)) == []


REFUSED: list[tuple[tuple[TensorSpec, ...], dict[str, Any], str]] = [
    ((X, OFFSETS), {"offsets": "OFFSETS"}, "pack: expected true beside `offsets`"),
    ((X, TYPES), {"pack": True}, "pack: expected `offsets: NAME` beside it"),
    ((X, TYPES), {"pack": True, "mask": "TYPES"}, "pack: expected false beside `mask`"),
    ((SCALE, OFFSETS), {"pack": True, "offsets": "OFFSETS"}, "an input with an open dimension"),
    ((X, OFFSETS), {"pack": True, "offsets": "OFFSET"}, "offsets: expected the name of an input"),
    (
        (X, OFFSETS),
        {"pack": True, "offsets": "OFFSETS", "lengths": "OFFSETS"},
        "another input than that of `lengths`",
    ),
    (
        (TensorSpec("X", "FP32", (-1, -1)), OFFSETS),
        {"pack": True, "offsets": "OFFSETS"},
        "one open dimension, .* not dimension 0 of X and dimension 1 of X",
    ),
    (
        (TensorSpec("X", "FP32", (3, -1)), OFFSETS),
        {"pack": True, "offsets": "OFFSETS"},
        "not dimension 1 of X",
    ),
    (
        (X, TensorSpec("Q", "FP32", (-1,), ranges=((1, 8),)), OFFSETS),
        {"pack": True, "offsets": "OFFSETS"},
        "with one range, not dimension 0 of X and dimension 0 of Q",
    ),
    ((X, TensorSpec("O", "FP32", ())), {"pack": True, "offsets": "O"}, "offsets: expected INT32 or INT64"),
    ((X, TensorSpec("O", "INT32", (1,))), {"pack": True, "offsets": "O"}, r"the shape \[\]: one number for"),
]


@pytest.mark.parametrize(("specs", "how", "complaint"), REFUSED)
def test_what_cannot_be_packed_is_refused(
    specs: tuple[TensorSpec, ...], how: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        marked(specs, **how)


def test_an_output_is_open_in_its_first_dimension_only() -> None:
    check_outputs([Y, EACH, TensorSpec("Z", "FP32", (-1, 4))])
    with pytest.raises(InputError, match=r"outputs\[1\].shape: expected open in its first dimension only"):
        check_outputs([Y, TensorSpec("Z", "FP32", (4, -1))])


def test_a_backend_that_packs_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="pack: expected false, or a backend that takes packed inputs"):
        checked_options(ModelFiles("m", "emulated", {}, PACKED, pack=True))
    with pytest.raises(InputError, match="inputs: expected a list of the inputs"):
        checked_options(ModelFiles("m", "python", {}, pack=True))


def test_made_up_and_own_requests_are_packed_to_be_measured() -> None:
    chance = np.random.default_rng(0)
    made = examples.batch(sized(PACKED, [5]), 3, chance)
    assert (made.inputs["X"].shape, made.inputs["OFFSETS"].tolist()) == ((15,), [0, 5, 10, 15])
    own = own_requests.drawn(PACKED, {"X": np.ones((9, 4), np.float32)}, 2, chance)
    assert (own.inputs["X"].shape, list(own.lengths)) == ((8,), [4, 4])


def test_offsets_begin_at_nothing() -> None:
    assert offsets_of([]).tolist() == [0]
    assert offsets_of([3, 1]).tolist() == [0, 3, 4]


class _Launched:
    """A launching model that notes its batches."""

    inputs, outputs = PACKED, (Y,)

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def launch(self, batch: Any, not_before: int) -> Any:
        self.seen.append(batch.inputs)


def test_a_repeated_order_packs_its_batch() -> None:
    model = _Launched()
    batch = examples.batch(sized(PACKED, [4]), 3, np.random.default_rng(0))
    turn = RepeatedOrder(model, batch).launched()
    assert turn.parts == 1
    (inputs,) = model.seen
    assert inputs["X"].tolist() == batch.inputs["X"].tolist()
    assert inputs["OFFSETS"].tolist() == [0, 4, 8, 12]
