"""Finish-time fairness (rho of Themis) is how long an app takes, over how long it would have taken by itself.

The paper has two forms of the second, and its authors' simulator a third. All are offered, by name:

- `share` (section 3.2): by itself on its part of the cluster, as many GPUs as there are for each app;
- `equation-1` (sections 4.3.1 and 4.3.2): all of its work on as much of the cluster as it can ever use, times
  the number of apps;
- `demand` (the simulator): by itself on the cluster, times the GPUs that all apps could use over those that
  there are, at least 1.

They differ where an app could not use the whole cluster: then the second is the largest, and rho smallest. It
also asks for less where jobs of a phase are unlike: it waits for nobody. By the third an app is compared with
itself in an empty cluster, slowed down as all are: it does not matter how many it shares with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import fsum  # rounded once, as every Python does: that of `sum` differs from 3.12 on
from typing import Literal

from astrarium.cluster.contract import App, Job
from astrarium.cluster.state import Contention
from astrarium.core.quantities import Time

Definition = Literal["share", "equation-1", "demand"]
Forecast = Callable[[Job], float]


def forecast(job: Job) -> float:
    return job.forecast


class PhaseWork:
    """The work of a phase says how long the phase would take by itself; sums over its jobs are done once."""

    def __init__(self, jobs: Sequence[Job], work: Forecast) -> None:
        self.total = sum(map(work, jobs))
        self.most = sum(job.most for job in jobs)
        longest: dict[int, float] = {}
        for job in jobs:
            longest[job.most] = max(longest.get(job.most, 0.0), work(job))
        self._longest = list(longest.items())

    def alone(self, gpus: float) -> float:
        """Return how long the phase takes on so many GPUs of its own. It is no faster than its longest job,
        nor than all GPUs at work all the time. Gangs that are larger than what it has take turns with nobody:
        they run for a part of the time."""
        takes = self.total / min(gpus, self.most)
        for width, work in self._longest:
            takes = max(takes, work / min(width, gpus))
        return takes


class Ideal:
    """T_id of one app by size and contention of the cluster; *work* is what its jobs are taken to need."""

    def __init__(self, app: App, definition: Definition, work: Forecast = forecast) -> None:
        self._definition = definition
        self._phases = [PhaseWork(phase, work) for phase in app.phases]
        self._widest = max(phase.most for phase in self._phases)
        self._total = sum(phase.total for phase in self._phases)

    def __call__(self, size: int, contention: Contention) -> float:
        if self._definition == "share":
            return max(1.0, self._alone(size / max(1.0, contention.apps)))
        if self._definition == "demand":
            return max(1.0, self._alone(size) * max(1.0, contention.gpus / size))
        return max(1.0, self._total / min(size, self._widest) * contention.apps)

    def _alone(self, gpus: float) -> float:
        return fsum(phase.alone(gpus) for phase in self._phases)


def rho(took: Time, app: App, size: int, contention: Contention, definition: Definition) -> float:
    """Return the finish-time fairness of an app that took so long from its arrival to its end."""
    return took / Ideal(app, definition, lambda job: job.work)(size, contention)
