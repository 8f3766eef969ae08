"""Groups that let requests wait make the next batch when their first stage is free."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np

from astrarium.core.quantities import FOREVER, Time
from astrarium.placement.groups.layout import REJECTED, Clocks, GroupLayout, Served, SmallInts, through

Entry = tuple[Time, int]  # deadline or arrival, and the request


@dataclass
class GroupQueue:
    """A group queue holds when a group's stages are free, what waits, and when running requests end."""

    clocks: list[Time]
    by_model: dict[int, list[Entry]]
    running: list[Time] = field(default_factory=list)
    waiting: int = 0
    ready: Time = 0  # when the first of those that wait came

    def length(self, now: Time) -> int:
        while self.running and self.running[0] <= now:
            heapq.heappop(self.running)
        return self.waiting + len(self.running)

    def pop(self, model: int) -> None:
        heapq.heappop(self.by_model[model])
        self.waiting -= 1


class QueuedGroups:
    """Requests wait in queues, and the next batch is made when a group's first stage is free."""

    def __init__(self, layout: GroupLayout, arrivals: Clocks, models: SmallInts) -> None:
        tables = layout.tables
        self.runtime = tables.runtime
        self.slo = tables.slo.tolist()
        self.times = tables.times[layout.kind].tolist()  # [group][model][batch - 1][stage]
        self.arrivals = arrivals.tolist()
        self.models = models.tolist()
        self.hosts = [np.flatnonzero(column).tolist() for column in layout.hosts.T]
        self.group_queues = [
            GroupQueue([0] * int(stages), {int(model): [] for model in np.flatnonzero(row)})
            for stages, row in zip(layout.stages, layout.hosts, strict=True)
        ]
        self.served = Served.empty(len(arrivals), layout)
        self.served.finish[:] = REJECTED

    def run(self) -> Served:
        for request in range(len(self.arrivals)):
            self._arrive(request)
        for group in range(len(self.group_queues)):
            self._advance(group, FOREVER)
        answered = self.served.finish != REJECTED
        self.served.finish[answered] += self.runtime.fixed_overhead
        return self.served

    def _deadline(self, request: int) -> Time:
        slo: Time = self.slo[self.models[request]]
        arrival: Time = self.arrivals[request]
        return arrival + slo - self.runtime.fixed_overhead

    def _arrive(self, request: int) -> None:
        now = self.arrivals[request]
        model = self.models[request]
        for group in self.hosts[model]:
            self._advance(group, now)
        able = [
            group for group in self.hosts[model] if self._alone(group, now, model) <= self._deadline(request)
        ]
        hosts = able if self.runtime.another else self.hosts[model]
        best = min(hosts, key=lambda group: (self.group_queues[group].length(now), group), default=-1)
        self.served.group[request] = best
        if best in able:
            self._wait(best, request, now, model)

    def _wait(self, group: int, request: int, now: Time, model: int) -> None:
        group_queue = self.group_queues[group]
        if group_queue.waiting == 0:
            group_queue.ready = now
        group_queue.waiting += 1
        key = self._deadline(request) if self.runtime.order == "deadline" else now
        heapq.heappush(group_queue.by_model[model], (key, request))

    def _advance(self, group: int, until: Time) -> None:
        """Send off all batches that start before *until*."""
        group_queue = self.group_queues[group]
        while group_queue.waiting and max(group_queue.clocks[0], group_queue.ready) < until:
            self._send(group, group_queue, max(group_queue.clocks[0], group_queue.ready))

    def _send(self, group: int, group_queue: GroupQueue, start: Time) -> None:
        model = min((queue[0], model) for model, queue in group_queue.by_model.items() if queue)[1]
        batch: list[int] = []
        earliest = FOREVER
        queue = group_queue.by_model[model]
        while queue and len(batch) < self.runtime.max_batch:
            request = queue[0][1]
            due = self._deadline(request)
            if self._alone(group, start, model) > due:
                group_queue.pop(model)
                continue
            if self._through(group, start, model, len(batch) + 1)[-1] > min(earliest, due):
                break
            earliest = min(earliest, due)
            batch.append(request)
            group_queue.pop(model)
        if batch:
            self._commit(group, group_queue, start, model, batch)

    def _commit(self, group: int, group_queue: GroupQueue, start: Time, model: int, batch: list[int]) -> None:
        group_queue.clocks = self._through(group, start, model, len(batch))
        self.served.work[group] += max(self.times[group][model][len(batch) - 1])
        for request in batch:
            self.served.finish[request] = group_queue.clocks[-1]
            heapq.heappush(group_queue.running, group_queue.clocks[-1])

    def _alone(self, group: int, start: Time, model: int) -> Time:
        return self._through(group, start, model, 1)[-1]

    def _through(self, group: int, start: Time, model: int, batch: int) -> list[Time]:
        return through(self.group_queues[group].clocks, start, self.times[group][model][batch - 1])
