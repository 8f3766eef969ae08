"""The simulated world of the serving level: what becomes of a dispatch, and when.

The truth lives here: execution times by kind of GPU, and for dynamic models the time that each single
request really takes. Policies see estimates only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from astrarium.core.units import Time
from astrarium.serving.actions import Action, Dispatch, Preempt
from astrarium.serving.events import BatchFinished, BatchPreempted, Event
from astrarium.serving.setup import Setup
from astrarium.serving.state import Batch, Gpu, ServingState


class Truth(Protocol):
    """How long a batch really takes."""

    def execution(self, batch: Batch) -> Time: ...


class TableTruth:
    """Predictable models: a table by kind of GPU, model and batch size."""

    def __init__(self, kind_of_gpu: Sequence[int], tables: Sequence[Sequence[Sequence[Time]]]) -> None:
        self._by_gpu = [tables[kind] for kind in kind_of_gpu]

    @classmethod
    def of(cls, setup: Setup) -> TableTruth:
        """The world as the policies believe it to be."""
        return cls([0] * len(setup.gpus), [[model.latency for model in setup.models]])

    def execution(self, batch: Batch) -> Time:
        return self._by_gpu[batch.gpu][batch.model][len(batch.requests)]


class ServingWorld:
    def __init__(self, setup: Setup, truth: Truth) -> None:
        self._network = setup.network
        self._preemption_cost = setup.preemption_cost
        self._truth = truth
        self._free = [0] * len(setup.gpus)  # when each GPU will really have finished what it was sent
        self._started = [0] * len(setup.gpus)  # and when the last batch sent to it starts
        self._last_run = [-1] * len(setup.gpus)

    def consequences(self, now: Time, action: Action, state: ServingState) -> Iterator[tuple[Time, Event]]:
        if type(action) is Dispatch:
            seen = self._last_run[action.gpu]
            gpu = state.gpus[action.gpu]
            for batch in gpu.batches:
                if batch.run > seen:
                    if batch is gpu.batches[0] and gpu.recovering < 0:
                        self._free[gpu.id] = min(self._free[gpu.id], now)  # it may have left and come back
                    yield self._run(now, batch)
                    break
        elif type(action) is Preempt:
            yield self._stop(now, state.gpus[action.gpu])

    def _run(self, now: Time, batch: Batch) -> tuple[Time, Event]:
        gpu, ready = batch.gpu, now + self._network.delay(len(batch.requests))
        start = self._started[gpu] = max(ready, batch.start, self._free[gpu])
        finish = self._free[gpu] = start + self._truth.execution(batch)
        self._last_run[gpu] = batch.run
        return finish, BatchFinished(gpu, batch.run, start)

    def _stop(self, now: Time, gpu: Gpu) -> tuple[Time, Event]:
        recovered = self._free[gpu.id] = now + self._preemption_cost
        return recovered, BatchPreempted(gpu.id, gpu.recovering, min(now, self._started[gpu.id]), now)
