"""Finish-time fairness: how long an app takes, over how long it would have taken by itself (Themis).

The papers do not agree on the second. Two are offered, by name:

- `share` (section 3.2): by itself on its part of the cluster, as many GPUs as there are for each app;
- `equation-1` (sections 4.3.1 and 4.3.2): all of its work on as much of the cluster as it can ever use, times
  the number of apps.

They differ where an app could not use the whole cluster: then the second is larger, and rho smaller. The
second also asks for less where jobs of a phase are unlike: it waits for nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from astrarium.cluster.contract import App, Job
from astrarium.core.units import Time

Definition = Literal["share", "equation-1"]
Forecast = Callable[[Job], Time]


def _true(job: Job) -> Time:
    return job.work


def alone(app: App, gpus: float, work: Forecast = _true) -> Time:
    """How long it takes on so many GPUs of its own, close together and divided at will."""
    return sum(phase_alone(phase, gpus, work) for phase in app.phases)


def phase_alone(jobs: Sequence[Job], gpus: float, work: Forecast) -> Time:
    """No faster than its longest job, nor than all GPUs at work all the time. Gangs that are larger than what
    it has take turns with nobody: they run for a part of the time."""
    longest = max(work(job) / min(job.most, max(gpus, 1e-9)) for job in jobs)
    together = sum(work(job) for job in jobs) / min(gpus, sum(job.most for job in jobs))
    return round(max(longest, together))


def ideal(app: App, size: int, contention: float, definition: Definition, work: Forecast = _true) -> Time:
    """T_id, in a cluster of *size* GPUs that so many apps shared on average."""
    if definition == "equation-1":
        return round(_at_its_widest(app, size, work) * contention)
    return alone(app, size / max(1.0, contention), work)


def _at_its_widest(app: App, size: int, work: Forecast) -> float:
    """T_cluster of Equations 1 and 2: the budget over the GPUs that it can use at most."""
    demand = max(sum(job.most for job in phase) for phase in app.phases)
    return sum(work(job) for phase in app.phases for job in phase) / min(size, demand)


def rho(took: Time, app: App, size: int, contention: float, definition: Definition) -> float:
    """Of an app that took so long from its arrival to its end."""
    return took / max(1, ideal(app, size, contention, definition))
