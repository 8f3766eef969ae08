"""An emulated GPU takes the time of its table, and answers with what it was asked."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from astrarium.core.errors import InputError
from astrarium.serving.live.backends.contract import Batch, ModelFailed, ModelFiles, Place, Result
from astrarium.serving.live.backends.emulated import EmulatedModel, Interrupted
from astrarium.serving.live.backends.stacking import stack
from astrarium.serving.live.tensors import TensorSpec

MS = 1_000_000
FLOATS = TensorSpec("X", "FP32", (-1,))


class Clock:
    """Stands in for the wait: remembers until when, and says whether it got there."""

    def __init__(self, arrives: bool = True) -> None:
        self.arrives = arrives
        self.instants = list[int]()

    def __call__(self, instant: int, ready: Any = None) -> bool:
        self.instants.append(instant)
        return self.arrives


def emulated(clock: Clock | None = None, gpu: int = 0, **options: Any) -> EmulatedModel:
    model = EmulatedModel(ModelFiles("m", "emulated", options), Place(gpu))
    model.wait_until = clock or Clock()
    return model


def batch(size: int, length: int = 3, applications: list[int] | None = None) -> Batch:
    values = np.arange(size * length, dtype=np.float32).reshape(size, length)
    return Batch(size, {"INPUT": values}, applications or [0] * size)


def duration(model: EmulatedModel, requests: Batch) -> tuple[int, int, Result]:
    """Bounds on how long the model meant to take: the clock runs on between reading it here and there."""
    clock = Clock()
    model.wait_until = clock
    before = time.monotonic_ns()
    result = model.run(requests)
    after = time.monotonic_ns()
    (instant,) = clock.instants
    return instant - after, instant - before, result


@pytest.mark.parametrize(("size", "takes"), [(1, 5 * MS), (2, 7 * MS)])
def test_a_batch_takes_what_the_table_says(size: int, takes: int) -> None:
    low, high, _ = duration(emulated(table=[0, 5 * MS, 7 * MS]), batch(size))
    assert low <= takes <= high


@pytest.mark.parametrize("size", [0, 3])
def test_a_batch_beyond_the_table_fails(size: int) -> None:
    with pytest.raises(ModelFailed, match="the profile ends at 2"):
        emulated(table=[0, 5, 7]).run(batch(size))


def test_it_answers_with_what_it_was_sent() -> None:
    model = emulated(table=[0, 1, 2])
    sent = batch(2)
    assert [spec.name for spec in (*model.inputs, *model.outputs)] == ["INPUT", "OUTPUT"]
    assert model.run(sent).outputs["OUTPUT"] is sent.inputs["INPUT"]


def test_an_echo_has_each_items_own_length() -> None:
    items = [np.ones(2, np.float32), np.ones(5, np.float32)]
    padded = Batch(2, {"INPUT": stack(items)}, (), {"INPUT": [(2,), (5,)]})
    outputs = emulated(table=[0, 1, 2]).run(padded).outputs["OUTPUT"]
    assert [np.asarray(item).tolist() for item in outputs] == [item.tolist() for item in items]


def test_outputs_that_no_input_resembles_are_zeros() -> None:
    outputs = (TensorSpec("CLASS", "INT64", ()), TensorSpec("BOX", "FP32", (-1, 4)))
    files = ModelFiles("m", "emulated", {"table": [0, 1, 1]}, (FLOATS,), outputs)
    model = EmulatedModel(files, Place())
    model.wait_until = Clock()
    output = model.run(Batch(2, {"X": np.ones((2, 3), np.float32)})).outputs
    assert np.asarray(output["CLASS"]).tolist() == [0, 0]
    assert np.asarray(output["BOX"]).shape == (2, 1, 4)


def test_an_interrupted_batch_has_no_answer() -> None:
    with pytest.raises(Interrupted):
        emulated(Clock(arrives=False), table=[0, 1]).run(batch(1))


@pytest.mark.parametrize(("free", "began"), [(0, 40), (39, 40), (41, 41)])
def test_a_launched_batch_begins_when_the_gpu_is_free(free: int, began: int) -> None:
    clock = Clock()
    sent = batch(2)
    result, *times = emulated(clock, table=[0, 5, 7]).launch(sent, not_before=40).wait(free)
    assert times == [began, began + 7]
    assert clock.instants == [began + 7]
    assert result.outputs["OUTPUT"] is sent.inputs["INPUT"]


def test_a_launched_batch_can_be_stopped() -> None:
    launched = emulated(Clock(arrives=False), table=[0, 5]).launch(batch(1), 0)
    with pytest.raises(Interrupted):
        launched.wait(0)


def test_a_dynamic_batch_waits_for_its_longest() -> None:
    model = emulated(dynamic={"c0": 2 * MS, "c1": 0.5, "applications": [[4 * MS], [10 * MS]]})
    low, high, result = duration(model, batch(3, applications=[0, 1, 0]))
    assert result.own_times == [4 * MS, 10 * MS, 4 * MS]
    assert low <= 2 * MS + 15 * MS <= high


def test_draws_repeat_with_the_seed_and_differ_between_gpus() -> None:
    def draws(gpu: int, seed: int) -> list[int]:
        model = emulated(gpu=gpu, dynamic={"applications": [list(range(1, 1000))], "seed": seed})
        return [model.run(batch(1)).own_times[0] for _ in range(20)]

    assert draws(0, 1) == draws(0, 1)
    assert draws(0, 1) != draws(1, 1)
    assert draws(0, 1) != draws(0, 2)


def test_every_time_of_an_application_comes_up() -> None:
    model = emulated(dynamic={"applications": [[1, 2, 3]]})
    assert {model.run(batch(1)).own_times[0] for _ in range(200)} == {1, 2, 3}


def test_an_emulated_model_needs_its_times() -> None:
    with pytest.raises(InputError, match="a table of times"):
        emulated()
