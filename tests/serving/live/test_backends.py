"""Model backends: the registry, emulated GPUs, exact waits, batches of unequal items."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from astrarium.core import registry as core_registry
from astrarium.core.errors import InputError
from astrarium.core.registry import Registry
from astrarium.serving.live.backends import backends, precise_wait
from astrarium.serving.live.backends.contract import Batch, ModelFailed, ModelFiles, Place, Result
from astrarium.serving.live.backends.emulated import EmulatedModel, Interrupted
from astrarium.serving.live.backends.stacking import split, stack
from astrarium.serving.live.tensors import TensorSpec

MS = 1_000_000
FLOATS = TensorSpec("X", "FP32", (-1,))


# the registry


def test_ours_are_found_by_name() -> None:
    assert backends.names() == ["emulated", "onnx", "python", "torch"]
    with pytest.raises(InputError, match="did you mean 'onnx'"):
        backends.get("onx")


def test_looking_them_up_imports_no_framework() -> None:
    code = (
        "import sys; from astrarium.serving.live.backends import backends; backends.get('torch');"
        "print([name for name in ('torch', 'onnxruntime', 'msgspec', 'yaml') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_strangers_come_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    def points(group: str) -> list[EntryPoint]:
        assert group == "astrarium.backends"
        return [EntryPoint("theirs", "collections:OrderedDict", group)]

    monkeypatch.setattr(core_registry, "entry_points", points)
    fresh: Registry[Any] = Registry("model backend", backends.package, backends.group)
    assert "theirs" in fresh.names()
    from collections import OrderedDict

    assert fresh.get("theirs") is OrderedDict


# emulated


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


def duration(model: EmulatedModel, given: Batch) -> tuple[int, int, Result]:
    """Bounds on how long the model meant to take: the clock runs on between reading it here and there."""
    clock = Clock()
    model.wait_until = clock
    before = time.monotonic_ns()
    result = model.run(given)
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
    given = batch(2)
    assert [spec.name for spec in (*model.inputs, *model.outputs)] == ["INPUT", "OUTPUT"]
    assert model.run(given).outputs["OUTPUT"] is given.inputs["INPUT"]


def test_an_echo_has_each_items_own_length() -> None:
    items = [np.ones(2, np.float32), np.ones(5, np.float32)]
    padded = Batch(2, {"INPUT": stack(items)}, (), {"INPUT": [(2,), (5,)]})
    found = emulated(table=[0, 1, 2]).run(padded).outputs["OUTPUT"]
    assert [np.asarray(item).tolist() for item in found] == [item.tolist() for item in items]


def test_outputs_that_no_input_resembles_are_zeros() -> None:
    outputs = (TensorSpec("CLASS", "INT64", ()), TensorSpec("BOX", "FP32", (-1, 4)))
    files = ModelFiles("m", "emulated", {"table": [0, 1, 1]}, (FLOATS,), outputs)
    model = EmulatedModel(files, Place())
    model.wait_until = Clock()
    found = model.run(Batch(2, {"X": np.ones((2, 3), np.float32)})).outputs
    assert np.asarray(found["CLASS"]).tolist() == [0, 0]
    assert np.asarray(found["BOX"]).shape == (2, 1, 4)


def test_an_interrupted_batch_has_no_answer() -> None:
    with pytest.raises(Interrupted):
        emulated(Clock(arrives=False), table=[0, 1]).run(batch(1))


@pytest.mark.parametrize(("free", "began"), [(0, 40), (39, 40), (41, 41)])
def test_a_launched_batch_begins_when_the_gpu_is_free(free: int, began: int) -> None:
    clock = Clock()
    given = batch(2)
    result, *times = emulated(clock, table=[0, 5, 7]).launch(given, not_before=40).wait(free)
    assert times == [began, began + 7]
    assert clock.instants == [began + 7]
    assert result.outputs["OUTPUT"] is given.inputs["INPUT"]


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


# waiting


def test_a_wait_never_ends_early() -> None:
    for span in (0, 50_000, 300_000, 2 * MS):
        instant = time.monotonic_ns() + span
        assert precise_wait.wait_until(instant)
        assert time.monotonic_ns() >= instant


def test_a_wait_can_be_interrupted_by_what_arrives() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"stop")
    wait = precise_wait.watching(reading, lambda _: os.read(reading, 4) == b"stop")
    assert not wait(time.monotonic_ns() + 3600 * 1_000_000_000)
    os.close(reading)
    os.close(writing)


def test_other_news_does_not_end_a_wait() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"go on")
    heard: list[bytes] = []

    def interrupted(until: int) -> bool:
        assert until == instant
        heard.append(os.read(reading, 5))
        return False

    instant = time.monotonic_ns() + 20 * MS
    assert precise_wait.watching(reading, interrupted)(instant)
    assert time.monotonic_ns() >= instant
    assert heard == [b"go on"]
    os.close(reading)
    os.close(writing)


class VirtualTime:
    """A clock that runs only while somebody pauses, and at least 2 us for each time somebody asks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, orders: Sequence[int] = ()) -> None:
        self.now = 0
        self.asked = 0
        self.orders = list(orders)
        self.heard = list[int]()
        clock = SimpleNamespace(monotonic_ns=lambda: self.now, sleep=self._pause)
        monkeypatch.setattr(precise_wait, "time", clock)
        monkeypatch.setattr(precise_wait, "select", SimpleNamespace(select=self._select))

    def ready_at(self, instant: int) -> Callable[[], bool]:
        def ready() -> bool:
            self.asked += 1
            return self.now >= instant

        return ready

    def hear(self, until: int) -> bool:
        self.heard.append(self.orders.pop(0))
        return True  # which ends no wait for something that gets ready

    def _pause(self, seconds: float) -> None:
        self.now += max(2000, round(seconds * 1e9))

    def _select(self, readers: Any, writers: Any, others: Any, seconds: float) -> tuple[Any, Any, Any]:
        end = self.now + max(2000, round(seconds * 1e9))
        self.now = max(self.now, min(end, *self.orders, end))
        return readers if self.orders and self.orders[0] <= self.now else [], [], []


@pytest.mark.parametrize("late", [-20, 0, 50, 400, 5000])
@pytest.mark.parametrize("listens", [False, True])
def test_what_gets_ready_is_found_soon_and_not_asked_for_all_the_time(
    late: int, listens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is expected after 5 ms, and ready that many microseconds later."""
    clock = VirtualTime(monkeypatch)
    wait = precise_wait.watching(0, clock.hear) if listens else precise_wait.wait_until
    end = 5 * MS + late * 1000
    assert wait(5 * MS, clock.ready_at(end))
    assert end <= clock.now <= end + max(2000, late * 1000 // 8 + 2000)
    assert clock.asked < 150


def test_orders_are_heard_while_something_gets_ready_and_do_not_end_the_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = VirtualTime(monkeypatch, [MS, MS, 4 * MS + 970_000])
    wait = precise_wait.watching(0, clock.hear)
    assert wait(5 * MS, clock.ready_at(5 * MS))
    assert clock.heard == [MS, MS, 4 * MS + 970_000]


# unequal items


def test_items_are_padded_to_the_longest() -> None:
    whole = stack([np.ones((1, 3)), np.full((2, 2), 7.0)])
    assert whole.tolist() == [[[1, 1, 1], [0, 0, 0]], [[7, 7, 0], [7, 7, 0]]]


def test_texts_are_padded_with_empty_ones() -> None:
    whole = stack([np.array([b"a"], object), np.array([b"b", b"c"], object)])
    assert whole.tolist() == [[b"a", b""], [b"b", b"c"]]


def test_items_of_one_shape_are_stacked_as_they_are() -> None:
    assert stack([np.zeros(3, np.int8), np.ones(3, np.int8)]).dtype == np.int8


def test_items_of_unequal_rank_are_refused() -> None:
    with pytest.raises(ValueError, match="unequal rank"):
        stack([np.zeros(3), np.zeros((3, 1))])


def test_an_output_that_follows_its_input_is_cut_back() -> None:
    found = split(np.arange(24).reshape(2, 4, 3), (-1, 3), [(2,), (4,)])
    assert found is not None
    assert [item.shape for item in found] == [(2, 3), (4, 3)]


@pytest.mark.parametrize("declared", [(4,), (-1,)])
def test_an_output_of_another_length_is_left_alone(declared: tuple[int, ...]) -> None:
    size = 4 if declared == (4,) else 7
    assert split(np.zeros((2, size)), declared, [(2,), (4,)]) is None
