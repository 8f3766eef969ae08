"""The fleet knows which workers are up, what they load, and when one that is not can be expected."""

from __future__ import annotations

import pytest

from astrarium.core.quantities import MILLISECOND
from astrarium.server.contract import Kind, Refused
from astrarium.serving.live.messages import (
    LoadModel,
    ModelLoaded,
    ModelRefused,
    Order,
    UnloadModel,
    fingerprint,
)
from tests.support.live_fakes import ECHO, PATHS, VALUES, Stage, admit, handler_of, on_path

path = pytest.fixture(on_path, params=PATHS, autouse=True)


def starting(stage: Stage, loading: int) -> None:
    """Bring the only worker to where it has been up for a while and is still loading a model."""
    stage.workers.hanging_loads = {loading}
    stage.workers.kill(0)
    stage.wait(100 + 50 + 10)
    assert [late.models for late in stage.fleet.late()] == [[loading]]


def orders(stage: Stage, kind: type[Order]) -> list[int]:
    return [order.model for _, order in stage.workers.orders if isinstance(order, kind)]  # type: ignore[union-attr]


def loaded(stage: Stage, model: int) -> None:
    stage.fleet.heard(0, ModelLoaded(model, (VALUES,), (ECHO,)))


def test_unloading_what_a_dead_worker_was_loading_does_not_make_it_ready() -> None:
    stage = Stage(gpus=1, models=2)
    starting(stage, loading=1)
    stage.workers.crash(0)
    stage.wait(1)
    stage.fleet.unload(1)
    assert stage.fleet.ready() == []
    assert stage.coordinator.present == set()
    stage.wait(1000)
    assert stage.fleet.ready() == [0]
    assert stage.fleet.restarts == 2
    (entry,) = stage.fleet._entries.values()
    assert entry.startup_time == 51 * MILLISECOND


def test_a_model_that_is_unloaded_while_a_worker_starts_with_it_is_not_kept() -> None:
    stage = Stage(gpus=1, models=2)
    starting(stage, loading=1)
    stage.fleet.unload(1)
    assert stage.fleet.ready() == [0]
    before = orders(stage, UnloadModel)
    loaded(stage, 1)
    assert orders(stage, UnloadModel) == [*before, 1]


def test_a_load_that_nobody_waits_for_any_more_is_undone() -> None:
    stage = Stage(gpus=1, models=2)
    stage.fleet.unload(1)
    stage.wait(5)
    assert orders(stage, UnloadModel) == [1]
    loaded(stage, 1)
    loaded(stage, 0)
    stage.fleet.heard(0, ModelRefused(1, "no such file"))
    assert orders(stage, UnloadModel) == [1, 1]


def test_a_worker_that_has_loaded_a_model_and_loads_others_is_told_to_unload_it() -> None:
    stage = Stage(gpus=1, models=2)
    starting(stage, loading=1)
    stage.fleet.unload(0)
    assert orders(stage, UnloadModel) == [0]


def test_a_worker_that_loads_others_is_told_of_a_new_model_and_ready_once_it_has_it() -> None:
    stage = Stage(gpus=1, models=2)
    stage.fleet.unload(1)
    stage.wait(5)
    starting(stage, loading=0)
    stage.fleet.load(1, stage.plan.models[1].files)
    assert orders(stage, LoadModel)[-1] == 1
    loaded(stage, 0)
    assert stage.fleet.ready() == []
    stage.wait(5)
    assert stage.fleet.ready() == [0]


def test_a_worker_that_is_not_back_when_it_was_expected_is_expected_later_and_later() -> None:
    """It took 51 ms before; now that it takes longer, calls of 25 ms are refused and not left to wait."""
    stage = Stage(gpus=1)
    calls = handler_of(stage)
    starting(stage, loading=0)
    expected = []
    for _ in range(3):
        expected.append(stage.fleet.back_at() - stage.loop.now)
        stage.wait(500)
    assert [round(one / MILLISECOND) for one in expected] == [30, 280, 530]
    stage.coordinator.sync()
    with pytest.raises(Refused, match="model m0: no worker is up; one is expected in 780 ms") as refused:
        admit(stage, calls)
    assert refused.value.kind is Kind.UNAVAILABLE
    admit(stage, calls, timeout=2000 * MILLISECOND)
    loaded(stage, 0)
    admit(stage, calls)


def test_workers_are_told_what_a_model_is_served_with_until_it_is_unloaded() -> None:
    stage = Stage(gpus=1)
    stage.wait(100)
    files = stage.plan.models[0].files
    stage.fleet.load(0, files)
    first, again = (order for _, order in stage.workers.orders if isinstance(order, LoadModel))
    assert first.tensors == 0
    assert again.tensors == fingerprint((VALUES,), (ECHO,))
    stage.fleet.unload(0)
    stage.fleet.load(0, files)
    *_, anew = (order for _, order in stage.workers.orders if isinstance(order, LoadModel))
    assert anew.tensors == 0
