"""Batches that take longer than they need are counted by model, and told now and then."""

from __future__ import annotations

from typing import Any

from astrarium.serving.live.backends.contract import Place
from astrarium.serving.live.backends.emulated import EmulatedModel
from astrarium.serving.live.messages import BatchesSlow
from astrarium.serving.live.worker.batch_turn import BatchTurn, ServedModel
from astrarium.serving.live.worker.slow_batches import SlowBatches
from tests.serving.live.world import FILES, MS, run


class Graphed(EmulatedModel):
    beside_graphs = 7  # while it was loaded


class Told:
    def __init__(self) -> None:
        self.now = 0
        self.news: list[Any] = []
        self.slow = SlowBatches(lambda: self.now, self.news.append)

    def turn(self, served: ServedModel, model: int = 0, parts: int = 1) -> None:
        turn = BatchTurn(run(1, model=model), 0, served, memoryview(b""))
        turn.parts = parts
        self.slow.add(turn)


def test_what_no_graph_could_run_is_counted_from_when_a_model_serves() -> None:
    told, model = Told(), Graphed(FILES, Place())
    served = ServedModel.of(model)
    told.turn(served)
    told.slow.tell(idle=True)
    assert told.news == []
    model.beside_graphs += 3
    told.turn(served, parts=3)
    told.turn(served)
    told.slow.tell(idle=True)
    told.slow.tell(idle=True)
    assert told.news == [BatchesSlow(0, 1, 3)]


def test_a_busy_worker_tells_ten_times_a_second() -> None:
    told, plain = Told(), ServedModel.of(EmulatedModel(FILES, Place()))
    for told.now in range(0, 250 * MS, 10 * MS):
        told.turn(plain, parts=2)
        told.slow.tell(idle=False)
    assert told.news == [BatchesSlow(0, 12, 0), BatchesSlow(0, 11, 0)]


def test_a_version_that_replaces_another_counts_from_its_own_start() -> None:
    told, first, second = Told(), Graphed(FILES, Place()), Graphed(FILES, Place())
    before, after = ServedModel.of(first), ServedModel.of(second)
    first.beside_graphs += 1
    told.turn(before)
    second.beside_graphs += 1
    told.turn(after)
    told.slow.tell(idle=True)
    assert told.news == [BatchesSlow(0, 0, 2)]
