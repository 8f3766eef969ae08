"""What becomes of a batch whose padding cannot be cut off its answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astrarium.serving.live.backends import backends
from astrarium.serving.live.backends.answers import result
from astrarium.serving.live.backends.contract import (
    Batch,
    LoadedModel,
    ModelFiles,
    PaddingRemains,
    Place,
    Ran,
)
from astrarium.serving.live.messages import BatchMember, RunBatch, packed
from astrarium.serving.live.shared_memory import SharedMemory
from astrarium.serving.live.tensors import TensorSpec
from astrarium.serving.live.worker.batch_turn import BatchTurn, ServedModel
from astrarium.serving.live.worker.packing import together

X = TensorSpec("X", "FP32", (-1,))
Y = TensorSpec("Y", "FP32", (-1,))
FIRST_FOUR = """
def first_four(X):
    return X[:, :4] + 1
"""


class Launched:
    """A launched batch has the answers of the model that it was given to."""

    def __init__(self, model: LoadedModel, batch: Batch) -> None:
        self._model = model
        self._batch = batch

    def wait(self, free: int) -> Ran:
        return Ran(self._model.run(self._batch), free, free + 1)


@pytest.fixture
def served(tmp_path: Path) -> ServedModel:
    (tmp_path / "code.py").write_text(FIRST_FOUR)
    files = ModelFiles("m", "python", {"model": "code.py:first_four"}, (X,), (Y,), 8, tmp_path)
    model = backends.get("python")(files, Place())
    return ServedModel.of(model, replace(together([X]), allowed=True))


def turn_of(served: ServedModel, memory: SharedMemory, *lengths: int) -> BatchTurn:
    members, shapes = [], list[Any]()
    for place, length in enumerate(lengths):
        memory.view[place * 64 : place * 64 + 4 * length] = np.ones(length, np.float32).tobytes()
        members.append(BatchMember(place * 64, 1, 0, 2048 + place * 64, 64))
        shapes.append([((1, length), 4 * length)])
    return BatchTurn(RunBatch(1, 0, packed(members), 0, shapes), 0, served, memory.view)


def test_items_whose_padding_would_be_answered_run_apart_from_then_on(served: ServedModel) -> None:
    memory = SharedMemory.create(1 << 12)
    parts = []
    for lengths in ((3, 2), (6, 2), (3, 2)):
        turn = turn_of(served, memory, *lengths)
        answers = turn.take(0, lambda: 0)[1].result.outputs["Y"]
        assert [item.tolist() for item in answers] == [[2.0] * min(4, length) for length in lengths]
        parts.append(turn.parts)
    assert parts == [1, 2, 2]


def test_a_launched_batch_fails_so_and_the_next_one_runs_apart(served: ServedModel) -> None:
    memory = SharedMemory.create(1 << 12)
    served.launch = lambda batch, not_before: Launched(served.model, batch)
    turn = turn_of(served, memory, 6, 2)
    turn.launch()
    with pytest.raises(PaddingRemains, match=r"output Y \[2, 4\] is not as long as .* inputs: X \[2, 6\]"):
        turn.take(0, lambda: 0)
    again = turn_of(served, memory, 6, 2)
    again.launch()
    answers = again.take(0, lambda: 0)[1].result.outputs["Y"]
    assert [item.tolist() for item in answers] == [[2.0] * 4, [2.0] * 2]


@pytest.mark.parametrize(("shape", "answer"), [((-1,), (2, 4)), ((-1, -1), (2, 3, 5)), ((2, -1), (2, 2, 3))])
def test_an_open_output_that_follows_no_input_wholly_has_padding(
    shape: tuple[int, ...], answer: tuple[int, ...]
) -> None:
    padded = Batch(2, {"X": np.zeros((2, 3), np.float32)}, (), {"X": [(3,), (1,)]})
    with pytest.raises(PaddingRemains):
        result(np.zeros(answer, np.float32), (TensorSpec("Y", "FP32", shape),), padded)


def test_an_output_without_open_dimensions_has_none() -> None:
    padded = Batch(2, {"X": np.zeros((2, 3), np.float32)}, (), {"X": [(3,), (1,)]})
    outputs = result(np.zeros((2, 5), np.float32), (TensorSpec("Y", "FP32", (5,)),), padded).outputs
    assert np.shape(outputs["Y"]) == (2, 5)
