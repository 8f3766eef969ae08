"""Groups that let requests wait: the next batch is made when the first stage is free.

Among those that wait, the earliest deadline (or arrival) goes first, and others of its model join its
batch in the same order, as long as everybody in it is still answered in time. Who is too late even alone
is rejected. The meaning of `native/src/placement/queues.h`.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np

from astrarium.core.units import FOREVER, Time
from astrarium.serving.placement.groups import REJECTED, Clocks, Layout, Served, SmallInts

Entry = tuple[Time, int]  # deadline or arrival, and the request


@dataclass
class Room:
    """One group: when its stages are free, who waits, and when those that run are answered."""

    clocks: list[Time]
    queues: dict[int, list[Entry]]
    running: list[Time] = field(default_factory=list)
    waiting: int = 0
    ready: Time = 0  # when the first of those that wait came

    def length(self, now: Time) -> int:
        while self.running and self.running[0] <= now:
            heapq.heappop(self.running)
        return self.waiting + len(self.running)

    def pop(self, model: int) -> None:
        heapq.heappop(self.queues[model])
        self.waiting -= 1


class Waiting:
    def __init__(self, layout: Layout, arrivals: Clocks, models: SmallInts) -> None:
        tables = layout.tables
        self.runtime, self.slo = tables.runtime, tables.slo.tolist()
        self.times = tables.times[layout.kind].tolist()  # [group][model][batch - 1][stage]
        self.arrivals, self.models = arrivals.tolist(), models.tolist()
        self.hosts = [np.flatnonzero(column).tolist() for column in layout.hosts.T]
        self.rooms = [
            Room([0] * int(stages), {int(model): [] for model in np.flatnonzero(row)})
            for stages, row in zip(layout.stages, layout.hosts, strict=True)
        ]
        self.served = Served.empty(len(arrivals), layout)
        self.served.finish[:] = REJECTED

    def run(self) -> Served:
        for request in range(len(self.arrivals)):
            self._arrive(request)
        for group in range(len(self.rooms)):
            self._advance(group, FOREVER)
        answered = self.served.finish != REJECTED
        self.served.finish[answered] += self.runtime.fixed_overhead
        return self.served

    def _deadline(self, request: int) -> Time:
        slo: Time = self.slo[self.models[request]]
        arrival: Time = self.arrivals[request]
        return arrival + slo - self.runtime.fixed_overhead

    def _arrive(self, request: int) -> None:
        now, model = self.arrivals[request], self.models[request]
        for group in self.hosts[model]:
            self._advance(group, now)
        able = [
            group for group in self.hosts[model] if self._alone(group, now, model) <= self._deadline(request)
        ]
        asked = able if self.runtime.another else self.hosts[model]
        best = min(asked, key=lambda group: (self.rooms[group].length(now), group), default=-1)
        self.served.group[request] = best
        if best in able:
            self._wait(best, request, now, model)

    def _wait(self, group: int, request: int, now: Time, model: int) -> None:
        room = self.rooms[group]
        if room.waiting == 0:
            room.ready = now
        room.waiting += 1
        key = self._deadline(request) if self.runtime.order == "deadline" else now
        heapq.heappush(room.queues[model], (key, request))

    def _advance(self, group: int, until: Time) -> None:
        """Send off all batches that start before *until*."""
        room = self.rooms[group]
        while room.waiting and max(room.clocks[0], room.ready) < until:
            self._send(group, room, max(room.clocks[0], room.ready))

    def _send(self, group: int, room: Room, start: Time) -> None:
        model = min((queue[0], model) for model, queue in room.queues.items() if queue)[1]
        batch: list[int] = []
        earliest, queue = FOREVER, room.queues[model]
        while queue and len(batch) < self.runtime.max_batch:
            request = queue[0][1]
            due = self._deadline(request)
            if self._alone(group, start, model) > due:
                room.pop(model)
                continue
            if self._through(group, start, model, len(batch) + 1)[-1] > min(earliest, due):
                break
            earliest = min(earliest, due)
            batch.append(request)
            room.pop(model)
        if batch:
            self._commit(group, room, start, model, batch)

    def _commit(self, group: int, room: Room, start: Time, model: int, batch: list[int]) -> None:
        room.clocks = self._through(group, start, model, len(batch))
        self.served.work[group] += max(self.times[group][model][len(batch) - 1])
        for request in batch:
            self.served.finish[request] = room.clocks[-1]
            heapq.heappush(room.running, room.clocks[-1])

    def _alone(self, group: int, start: Time, model: int) -> Time:
        return self._through(group, start, model, 1)[-1]

    def _through(self, group: int, start: Time, model: int, batch: int) -> list[Time]:
        ends, now = [], start
        for clock, took in zip(self.rooms[group].clocks, self.times[group][model][batch - 1], strict=False):
            now = max(now, clock) + took
            ends.append(now)
        return ends
