"""The simulated world: what becomes of a dispatch or a preemption, and exactly when."""

from __future__ import annotations

import pytest

from astrarium.serving.contract import (
    Action,
    BatchFinished,
    BatchPreempted,
    Dispatch,
    Event,
    GpuJoined,
    GpuLeft,
    Network,
    Preempt,
    Request,
    RequestArrived,
)
from astrarium.serving.state import Batch, ServingState
from astrarium.serving.world import ServingWorld, TableTruth
from astrarium.testing.serving.cases import cluster, linear_model


class Played:
    """Six waiting requests of l(b) = 10 b, a control delay of 2 and an input delay of 1, recovery in 4."""

    def __init__(self, control: int = 2, data: int = 1) -> None:
        setup = cluster([linear_model(10, 0, slo=500)], gpus=2, network=Network(control, data), cost=4)
        self.state = ServingState(setup)
        self.world = ServingWorld(setup, TableTruth.of(setup))
        for id_ in range(6):
            self.hear(0, RequestArrived(Request(id_, 0, 0, 500)))

    def hear(self, now: int, event: Event) -> None:
        self.state.apply(now, event)

    def ask(self, now: int, action: Action) -> list[tuple[int, Event]]:
        self.state.commit(now, action)
        return list(self.world.consequences(now, action, self.state))


@pytest.fixture
def played() -> Played:
    return Played()


def test_a_batch_starts_once_its_order_and_inputs_have_arrived(played: Played) -> None:
    assert played.ask(100, Dispatch(0, (0, 1))) == [(124, BatchFinished(0, 0, 104))]


def test_a_batch_does_not_start_before_it_is_told_to(played: Played) -> None:
    assert played.ask(100, Dispatch(0, (0, 1), start=150)) == [(170, BatchFinished(0, 0, 150))]


def test_a_batch_waits_for_the_one_before_it_on_the_same_gpu(played: Played) -> None:
    played.ask(100, Dispatch(0, (0, 1)))
    assert played.ask(101, Dispatch(0, (2,))) == [(134, BatchFinished(0, 1, 124))]
    assert played.ask(101, Dispatch(1, (3,))) == [(114, BatchFinished(1, 2, 104))]


def test_a_preempted_gpu_recovers_for_the_cost_and_then_runs_on(played: Played) -> None:
    played.ask(100, Dispatch(0, (0, 1)))
    assert played.ask(110, Preempt(0)) == [(114, BatchPreempted(0, 0, 104, 110))]
    assert played.ask(110, Dispatch(0, (2,))) == [(124, BatchFinished(0, 1, 114))]


def test_a_batch_that_is_cancelled_before_it_starts_has_done_no_work(played: Played) -> None:
    played.ask(100, Dispatch(0, (0, 1)))
    assert played.ask(102, Preempt(0)) == [(106, BatchPreempted(0, 0, 102, 102))]


def test_a_gpu_that_left_and_came_back_has_forgotten_its_old_batch(played: Played) -> None:
    played.ask(100, Dispatch(0, (0, 1, 2, 3)))
    played.hear(110, GpuLeft(0))
    played.hear(111, GpuJoined(0))
    assert played.ask(112, Dispatch(0, (4,))) == [(125, BatchFinished(0, 1, 115))]


def test_a_timer_has_no_consequence_in_the_world(played: Played) -> None:
    from astrarium.core.policy import SetTimer

    assert played.ask(100, SetTimer(200, "wake")) == []


def test_truth_differs_by_kind_of_gpu() -> None:
    truth = TableTruth([0, 1], [[[0, 10, 20]], [[0, 30, 40]]])
    pair = [Request(0, 0, 0, 0), Request(1, 0, 0, 0)]
    assert [truth.execution(Batch(0, 0, gpu, pair, 0)) for gpu in (0, 1)] == [20, 40]
