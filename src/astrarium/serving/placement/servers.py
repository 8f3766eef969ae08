"""GPUs at work on batches: stages of replicas in tandem, which slow each other where they share a GPU.

A stage runs one batch at a time and hands it on to the next one, where batches wait their turn. While several
stages of a GPU are at work they slow each other (`interference`); whenever one starts or ends, the others go
on at another pace. A stage over several GPUs is as fast as on the slowest of them.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

from astrarium.core.units import Time
from astrarium.serving.placement.interference import Interference, Tenant
from astrarium.serving.placement.journeys import Batch
from astrarium.serving.placement.plan import Replica
from astrarium.serving.placement.problem import PlacementGpu

FINISHED, ARRIVED, WAITED = range(3)  # in this order where they fall together


class Crowd:
    """The stages on one GPU. `sizes` are those of their batches now (0: idle), `paces` how many times as long
    as alone they take."""

    def __init__(self, gpu: PlacementGpu, interference: Interference) -> None:
        self.gpu, self.interference = gpu, interference
        self.stages: list[Stage] = []
        self.sizes: list[int] = []
        self.paces: Sequence[float] = ()
        self._known: dict[tuple[int, ...], Sequence[float]] = {}

    def enter(self, stage: Stage) -> int:
        self.stages.append(stage)
        self.sizes.append(0)
        return len(self.sizes) - 1

    def changed(self, place: int, size: int) -> None:
        """Paces are remembered: the same few companies meet again and again."""
        self.sizes[place] = size
        key = tuple(self.sizes)
        known = self._known.get(key)
        if known is None:
            tenants = [stage.tenant(size) for stage, size in zip(self.stages, key, strict=True)]
            known = self._known[key] = self.interference.slowdowns(self.gpu, tenants)
        self.paces = known


class Stage:
    """`work[b]` is how long a batch of b takes alone on its share; `left` of the present one. `turn` counts
    announcements of an end: only the last one holds."""

    def __init__(
        self, entrance: Entrance, replica: Replica, work: tuple[Time, ...], crowds: Sequence[Crowd]
    ) -> None:
        self.entrance, self.replica, self.work = entrance, replica, work
        self.crowds = [(crowd, crowd.enter(self)) for crowd in crowds]
        self.first = True
        self.following: Stage | None = None
        self.waiting: deque[Batch] = deque()
        self.batch: Batch | None = None
        self.left = self.pace = 0.0
        self.since = self.began = self.turn = 0

    def follow(self, stage: Stage) -> None:
        self.first, stage.following = False, self

    def tenant(self, size: int) -> Tenant:
        return Tenant(self.replica.model, size or len(self.work) - 1, self.replica.share, size > 0)

    @cached_property
    def lonely(self) -> bool:
        """No other stage is on its GPUs. Asked only when all have entered."""
        return all(len(crowd.stages) == 1 for crowd, _ in self.crowds)

    def felt(self) -> float:
        """The pace that its company allows."""
        if len(self.crowds) == 1:
            crowd, place = self.crowds[0]
            return crowd.paces[place]
        return max(crowd.paces[place] for crowd, place in self.crowds)


class Entrance(Protocol):
    """What stands before the first stage of a replica."""

    def opened(self, now: Time) -> None:
        """The first stage is free, or somebody has waited long enough."""
        ...

    def left(self, batch: Batch) -> None:
        """A batch has been through all stages."""
        ...


class Machine:
    """The events of all stages, in the order of time."""

    def __init__(self) -> None:
        self._events: list[tuple[Time, int, int, int, Stage]] = []
        self._count = 0

    def run_before(self, at: Time) -> None:
        """All that happens before an arrival at that instant."""
        events = self._events
        while events and (events[0][0] < at or (events[0][0] == at and events[0][1] == FINISHED)):
            now, kind, _, turn, stage = heapq.heappop(events)
            if kind == WAITED:
                stage.entrance.opened(now)
            elif turn == stage.turn:
                self._finished(now, stage)

    def run_out(self) -> None:
        """Until nothing happens any more."""
        while self._events:
            self.run_before(self._events[0][0] + 1)

    def wake(self, at: Time, first: Stage) -> None:
        self._push(at, WAITED, first)

    def begin(self, now: Time, stage: Stage, batch: Batch) -> None:
        size = len(batch.members)
        stage.batch, stage.left, stage.since, stage.pace = batch, float(stage.work[size]), now, 0.0
        stage.began = now
        self._changed(now, stage, size)

    def _finished(self, now: Time, stage: Stage) -> None:
        batch, stage.batch = stage.batch, None
        assert batch is not None
        batch.stays.append((stage.began, now))
        self._changed(now, stage, 0)
        if stage.following is not None:
            stage.following.waiting.append(batch)
            self._next(now, stage.following)
        else:
            batch.done = now
            stage.entrance.left(batch)
        if stage.first:
            stage.entrance.opened(now)
        else:
            self._next(now, stage)

    def _next(self, now: Time, stage: Stage) -> None:
        if stage.batch is None and stage.waiting:
            self.begin(now, stage, stage.waiting.popleft())

    def _changed(self, now: Time, stage: Stage, size: int) -> None:
        if stage.lonely and not size:
            return  # nobody hears of its end
        for crowd, place in stage.crowds:
            crowd.changed(place, size)
        for crowd, _ in stage.crowds:
            for other in crowd.stages:
                if other.batch is not None and (pace := other.felt()) != other.pace:
                    self._at_pace(now, other, pace)

    def _at_pace(self, now: Time, stage: Stage, pace: float) -> None:
        if stage.pace:
            stage.left = max(0.0, stage.left - (now - stage.since) / stage.pace)
        stage.pace, stage.since = pace, now
        stage.turn += 1
        self._push(now + math.ceil(stage.left * pace), FINISHED, stage)

    def _push(self, at: Time, kind: int, stage: Stage) -> None:
        self._count += 1
        heapq.heappush(self._events, (at, kind, self._count, stage.turn, stage))
