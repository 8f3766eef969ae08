"""Stages of replicas run batches, and slow each other where they share a GPU."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

from astrarium.core.quantities import Time
from astrarium.placement.interference import Interference, Tenant
from astrarium.placement.path import BatchJourney
from astrarium.placement.plan import Replica
from astrarium.placement.problem import PlacementGpu

FINISHED, ARRIVED, WAITED = range(3)  # in this order where they fall together


class StageWorker(Protocol):
    """Whoever has the stages of a replica hears when they are done."""

    def opened(self, now: Time) -> None:
        """Hear that the first stage is free, or that somebody has waited long enough."""

    def left(self, batch: BatchJourney) -> None:
        """Hear that a batch has been through all stages."""


class SharedGpu:
    """The stages on one GPU slow each other.

    `sizes` are those of their batches now (0: idle), `paces` how many times as long as alone they take.
    """

    def __init__(self, gpu: PlacementGpu, interference: Interference) -> None:
        self.gpu = gpu
        self.interference = interference
        self.stages: list[Stage] = []
        self.sizes: list[int] = []
        self.paces: Sequence[float] = ()
        self._known: dict[tuple[int, ...], Sequence[float]] = {}

    def enter(self, stage: Stage) -> int:
        self.stages.append(stage)
        self.sizes.append(0)
        return len(self.sizes) - 1

    def changed(self, place: int, size: int) -> None:
        """Update the paces for a stage's batch size; they are remembered, as few combinations occur."""
        self.sizes[place] = size
        key = tuple(self.sizes)
        known = self._known.get(key)
        if known is None:
            tenants = [stage.tenant(size) for stage, size in zip(self.stages, key, strict=True)]
            known = self._known[key] = self.interference.slowdowns(self.gpu, tenants)
        self.paces = known


class Stage:
    """A stage of a replica runs one batch at a time.

    `work[b]` is how long a batch of b takes alone on its share; `left` of the present one. `turn` counts
    announcements of an end: only the last one holds.
    """

    def __init__(
        self, worker: StageWorker, replica: Replica, work: tuple[Time, ...], shared_gpus: Sequence[SharedGpu]
    ) -> None:
        self.worker = worker
        self.replica = replica
        self.work = work
        self.shared_gpus = [(shared, shared.enter(self)) for shared in shared_gpus]
        self.first = True
        self.following: Stage | None = None
        self.waiting: deque[BatchJourney] = deque()
        self.batch: BatchJourney | None = None
        self.left = self.pace = 0.0
        self.since = self.began = self.turn = 0

    def follow(self, stage: Stage) -> None:
        self.first = False
        stage.following = self

    def tenant(self, size: int) -> Tenant:
        return Tenant(self.replica.model, size or len(self.work) - 1, self.replica.share, size > 0)

    @cached_property
    def lonely(self) -> bool:
        """Whether no other stage is on its GPUs; asked only when all have entered."""
        return all(len(shared.stages) == 1 for shared, _ in self.shared_gpus)

    def felt(self) -> float:
        """Return the pace that the other stages on its GPUs allow."""
        if len(self.shared_gpus) == 1:
            shared, place = self.shared_gpus[0]
            return shared.paces[place]
        return max(shared.paces[place] for shared, place in self.shared_gpus)


class StageEvents:
    """Stage events are run in the order of time, for all stages together."""

    def __init__(self) -> None:
        self._events: list[tuple[Time, int, int, int, Stage]] = []
        self._count = 0

    def run_before(self, at: Time) -> None:
        """Run all events that come before an arrival at that instant."""
        events = self._events
        while events and (events[0][0] < at or (events[0][0] == at and events[0][1] == FINISHED)):
            now, kind, _, turn, stage = heapq.heappop(events)
            if kind == WAITED:
                stage.worker.opened(now)
            elif turn == stage.turn:
                self._finished(now, stage)

    def run_out(self) -> None:
        """Run events until there are none."""
        while self._events:
            self.run_before(self._events[0][0] + 1)

    def wake(self, at: Time, first: Stage) -> None:
        self._push(at, WAITED, first)

    def begin(self, now: Time, stage: Stage, batch: BatchJourney) -> None:
        size = len(batch.members)
        stage.batch, stage.left, stage.since, stage.pace = batch, float(stage.work[size]), now, 0.0
        stage.began = now
        self._changed(now, stage, size)

    def _finished(self, now: Time, stage: Stage) -> None:
        batch = stage.batch
        stage.batch = None
        assert batch is not None
        batch.stays.append((stage.began, now))
        self._changed(now, stage, 0)
        if stage.following is not None:
            stage.following.waiting.append(batch)
            self._next(now, stage.following)
        else:
            batch.done = now
            stage.worker.left(batch)
        if stage.first:
            stage.worker.opened(now)
        else:
            self._next(now, stage)

    def _next(self, now: Time, stage: Stage) -> None:
        if stage.batch is None and stage.waiting:
            self.begin(now, stage, stage.waiting.popleft())

    def _changed(self, now: Time, stage: Stage, size: int) -> None:
        if stage.lonely and not size:
            return  # nobody hears of its end
        for shared, place in stage.shared_gpus:
            shared.changed(place, size)
        for shared, _ in stage.shared_gpus:
            for other in shared.stages:
                if other.batch is not None and (pace := other.felt()) != other.pace:
                    self._at_pace(now, other, pace)

    def _at_pace(self, now: Time, stage: Stage, pace: float) -> None:
        if stage.pace:
            stage.left = max(0.0, stage.left - (now - stage.since) / stage.pace)
        stage.pace = pace
        stage.since = now
        stage.turn += 1
        self._push(now + math.ceil(stage.left * pace), FINISHED, stage)

    def _push(self, at: Time, kind: int, stage: Stage) -> None:
        self._count += 1
        heapq.heappush(self._events, (at, kind, self._count, stage.turn, stage))
