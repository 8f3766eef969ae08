"""Turns on a GPU when models need the host, or when a real GPU begins what it is given as soon as it can."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from astrarium.serving.live.backends.contract import Batch, Place, Ran, Result
from astrarium.serving.live.backends.emulated import EmulatedBatch, EmulatedModel
from astrarium.serving.live.backends.precise_wait import Wait
from astrarium.serving.live.messages import (
    BatchCancelled,
    CancelBatch,
    LoadModel,
    News,
    Order,
    Ping,
    Pong,
    Stop,
    plain_files,
)
from astrarium.serving.live.worker import models
from tests.serving.live.world import FILES, MS, TABLE, US, WHILE_IT_RUNS, World, done, run


@pytest.fixture(autouse=True, scope="module", params=["python", "native"])
def natively(request: pytest.FixtureRequest) -> Iterator[None]:
    """Everything here holds whoever runs the batches."""
    World.natively = request.param == "native"
    yield
    World.natively = False


Log = list[tuple[int, str]]


class Slow:
    """Runs in the host's own time, and listens to nobody meanwhile."""

    def __init__(self, world: World, log: Log) -> None:
        self.inputs = FILES.inputs
        self.outputs = FILES.outputs
        self._world = world
        self._log = log

    def warm_up(self, sizes: Sequence[int]) -> None:
        pass

    def run(self, batch: Batch) -> Result:
        self._log.append((self._world.now, "ran"))
        self._world.now += 6 * MS
        return Result({"OUTPUT": batch.inputs["INPUT"]})

    def close(self) -> None:
        self._log.append((self._world.now, "closed"))


class Quick(EmulatedModel):
    """Emulated, and tells when it was launched."""

    def __init__(self, world: World, log: Log) -> None:
        super().__init__(FILES, Place())
        self.timed = None  # or native code would run it, and tell nobody
        self._world = world
        self._log = log

    def launch(self, batch: Batch, not_before: int) -> EmulatedBatch:
        self._log.append((self._world.now, "launched"))
        return super().launch(batch, not_before)


Serve = Callable[..., tuple[list[News], Log]]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Model 0 is emulated and model 1 needs the host; answers with the news and what the two did."""

    def serve(*script: tuple[int, Order], work: int = 0) -> tuple[list[News], Log]:
        log: Log = []
        slow = LoadModel(1, plain_files(replace(FILES, backend="slow")), [1])
        both = (0, slow), (0, LoadModel(0, plain_files(FILES), [1]))
        world = World([*both, *script, (1_000 * MS, Stop())], work)

        def get(name: str) -> Callable[..., Any]:
            return lambda files, place: (Quick if name == "emulated" else Slow)(world, log)

        monkeypatch.setattr(models, "backends", SimpleNamespace(get=get))
        return world.serve(), log

    return serve


def test_a_model_that_needs_the_host_has_the_gpu_to_itself(serve: Serve) -> None:
    script = (8 * MS, run(1)), (9 * MS, run(2, model=1)), (9 * MS, run(3)), (9 * MS, run(4, model=1))
    news, _ = serve(*script, work=20 * US)
    first, second, third, fourth = map(done, news)
    assert second.started >= first.finished
    assert second.started < second.computing
    assert third.started == second.computed
    assert fourth.started >= third.finished


def test_a_batch_is_launched_while_the_one_before_runs(serve: Serve) -> None:
    _, log = serve((8 * MS, run(1)), (WHILE_IT_RUNS, run(2)))
    assert log == [(8 * MS, "launched"), (WHILE_IT_RUNS, "launched")]


def test_nothing_is_launched_shortly_before_an_end(serve: Serve) -> None:
    """It would delay the answers; and the GPU starts it in time all the same."""
    news, log = serve((8 * MS, run(1)), (13 * MS - 50 * US, run(2)), work=20 * US)
    first, second = map(done, news)
    assert log[-1][0] > first.finished
    assert second.started == first.computed


def test_nothing_is_launched_before_a_batch_that_needs_the_host(serve: Serve) -> None:
    script = (8 * MS, run(1)), (9 * MS, run(2, model=1, start=30 * MS)), (9 * MS, run(3)), (20 * MS, run(4))
    _, log = serve(*script)
    assert [what for _, what in log] == ["launched", "ran", "launched", "launched"]


def test_a_model_that_needs_the_host_waits_for_its_start(serve: Serve) -> None:
    news, _ = serve((8 * MS, run(1, model=1, start=30 * MS)))
    assert done(news[0]).started == 30 * MS


def test_a_model_is_closed_once_nobody_needs_it(serve: Serve) -> None:
    """It is to go, and another takes its number, while one of its batches still waits for its turn."""
    again = LoadModel(1, plain_files(FILES), [1])
    script = (8 * MS, run(1)), (9 * MS, run(2, model=1)), (9 * MS, again), (9 * MS, run(3, model=1))
    news, log = serve(*script)
    assert [what for _, what in log if what != "launched"] == ["ran", "closed"]
    assert [done(one).tag for one in news] == [1, 2, 3]
    assert done(news[2]).computed - done(news[2]).started == TABLE[1]


class RealBatch:
    def __init__(self, gpu: Real, result: Result, began: int) -> None:
        self._gpu = gpu
        self._result = result
        self._began = began
        self._ended = began + TABLE[1]

    def wait(self, free: int) -> Ran:
        assert self._gpu.wait_until(self._ended, lambda: self._gpu.world.now >= self._ended)
        return Ran(self._result, max(free, self._began), self._ended)


class Real:
    """Takes two batches at once, whatever their size, and TABLE[1] for each."""

    in_flight = 2

    def __init__(self, world: World, log: Log) -> None:
        self.inputs = FILES.inputs
        self.outputs = FILES.outputs
        self.world = world
        self._log = log
        self.wait_until: Wait = world.watch(-1, lambda until: False)

    def warm_up(self, sizes: Sequence[int]) -> None:
        pass

    def run(self, batch: Batch) -> Result:
        raise AssertionError("it is launched")

    def launch(self, batch: Batch, not_before: int) -> RealBatch:
        self._log.append((self.world.now, "launched"))
        began = max(self.world.gpu_free, self.world.now)
        self.world.gpu_free = began + TABLE[1]
        return RealBatch(self, Result({"OUTPUT": batch.inputs["INPUT"]}), began)

    def close(self) -> None:
        pass


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Models 0 and 2 are on a real GPU, and model 1 needs the host."""

    def serve(*script: tuple[int, Order], late: int = 0) -> tuple[list[News], Log]:
        log: Log = []
        loads = [(0, LoadModel(n, plain_files(replace(FILES, backend=f"{n}")), [1])) for n in range(3)]
        world = World([*loads, *script, (1_000 * MS, Stop())], 0, late)

        def get(name: str) -> Callable[..., Any]:
            return lambda files, place: (Slow if name == "1" else Real)(world, log)

        monkeypatch.setattr(models, "backends", SimpleNamespace(get=get))
        return world.serve(), log

    return serve


def times_of(log: Log) -> list[int]:
    return [at for at, _ in log]


def test_a_gpu_has_the_next_batch_before_it_needs_it(on_gpu: Serve) -> None:
    news, log = on_gpu((8 * MS, run(1)), (9 * MS, run(2)), (9 * MS, run(3)), late=200 * US)
    first, second, third = map(done, news)
    assert times_of(log) == [8 * MS, 9 * MS, first.finished], "two at once"
    assert (second.started, third.started) == (first.computed, second.computed)
    assert first.finished == first.computed + 200 * US


def test_a_gpu_is_given_the_next_batch_even_shortly_before_it_needs_it(on_gpu: Serve) -> None:
    news, log = on_gpu((8 * MS, run(1)), (13 * MS - 50 * US, run(2)))
    assert times_of(log) == [8 * MS, 13 * MS - 50 * US]
    assert done(news[1]).started == done(news[0]).computed


def test_a_gpu_that_is_done_early_does_not_wait_for_a_planned_start(on_gpu: Serve) -> None:
    news, _ = on_gpu((8 * MS, run(1)), (9 * MS, run(2, start=14 * MS)))
    assert done(news[1]).started == done(news[0]).computed == 13 * MS


def test_an_idle_gpu_is_given_no_batch_before_its_start(on_gpu: Serve) -> None:
    """Nor those behind it, which must not overtake it."""
    news, log = on_gpu((8 * MS, run(1, start=30 * MS)), (9 * MS, run(2)))
    assert times_of(log) == [30 * MS, 30 * MS]
    assert [done(one).started for one in news] == [30 * MS, 35 * MS]


def test_orders_are_heard_while_a_gpu_computes(on_gpu: Serve) -> None:
    pong, first = on_gpu((8 * MS, run(1)), (9 * MS, Ping(5)))[0]
    assert pong == Pong(5, 9 * MS)
    assert done(first).computed == 13 * MS


def test_a_batch_that_a_gpu_computes_cannot_be_stopped(on_gpu: Serve) -> None:
    """Nobody is told that the GPU is free before it is."""
    stopped, second = on_gpu((8 * MS, run(1)), (9 * MS, run(2)), (WHILE_IT_RUNS, CancelBatch(1)))[0]
    assert stopped == BatchCancelled(1, 8 * MS, 13 * MS)
    assert done(second).started == 13 * MS


def test_batches_of_several_models_keep_their_order_on_a_gpu(on_gpu: Serve) -> None:
    models = [0, 2, 1, 0]
    news, log = on_gpu(*((8 * MS, run(n, model=model)) for n, model in enumerate(models)))
    first, second, third, fourth = map(done, news)
    assert [what for _, what in log] == ["launched", "launched", "ran", "launched"]
    assert second.started == first.computed
    assert third.started == second.finished
    assert fourth.started == third.finished
