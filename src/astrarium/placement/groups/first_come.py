"""Groups that answer or reject a request at once need no queue: the clocks of their stages tell."""

from __future__ import annotations

from collections import deque

import numpy as np

from astrarium.placement.groups.layout import REJECTED, Clocks, GroupLayout, Served, SmallInts, through


class FirstCome:
    """First come, first served: requests are accepted or rejected at once; *clocks* are updated."""

    def __init__(self, layout: GroupLayout, clocks: Clocks) -> None:
        self.layout = layout
        self.runtime = layout.tables.runtime
        self.final = clocks
        self.slo = layout.tables.slo.tolist()
        self.times = layout.tables.times[layout.kind][:, :, 0].tolist()  # [group][model][stage]
        self.hosts = [np.flatnonzero(column).tolist() for column in layout.hosts.T]
        pairs = zip(clocks.tolist(), layout.stages.tolist(), strict=True)
        self.clocks: list[list[float]] = [row[:stages] for row, stages in pairs]
        self.unfinished: list[deque[float]] = [deque() for _ in self.clocks]
        self.work = [0.0 if self.runtime.clock == "seconds" else 0] * len(self.clocks)

    def run(self, arrivals: Clocks, models: SmallInts) -> Served:
        served = Served.empty(len(arrivals), self.layout)
        for number, (arrival, model) in enumerate(zip(arrivals.tolist(), models.tolist(), strict=True)):
            finish, served.group[number] = self.serve(arrival, model)
            served.finish[number] = finish if finish == REJECTED else finish + self.runtime.fixed
        served.work[:] = self.work
        for row, clocks in zip(self.final, self.clocks, strict=True):
            row[: len(clocks)] = clocks
        return served

    def serve(self, arrival: float, model: int) -> tuple[float, int]:
        """Return when a request's last stage ends, and its group; if rejected, the last group tried."""
        tried = -1
        for tried in self._candidates(arrival, model):
            ends = through(self.clocks[tried], arrival, self.times[tried][model])
            if ends[-1] + self.runtime.fixed - arrival <= self.slo[model]:
                self._accept(tried, model, ends)
                return ends[-1], tried
        return REJECTED, tried

    def _candidates(self, arrival: float, model: int) -> list[int]:
        ranked = sorted(self.hosts[model], key=lambda group: (self._load(group, arrival), group))
        return ranked if self.runtime.another else ranked[:1]

    def _load(self, group: int, now: float) -> float:
        if self.runtime.dispatch == "clock":
            return self.clocks[group][-1]
        queue = self.unfinished[group]
        while queue and queue[0] <= now:
            queue.popleft()
        return len(queue)

    def _accept(self, group: int, model: int, ends: list[float]) -> None:
        self.clocks[group] = ends
        self.unfinished[group].append(ends[-1])
        self.work[group] += max(self.times[group][model])
