"""Themis's apps at the size at which they were run.

The traces are not public, nor is how they were made smaller. `workloads.themis.on_testbed` says what is
printed of the runs, and draws apps that agree with it: 1,000 GPU-hours, tasks as in Table 5, half of the apps
at work for about 4.9 hours. On other clusters they come as much faster as there are more GPUs.

`as_drawn`: what is printed of the trace (section 2.2) in their place, made shorter until it is 1,000
GPU-hours. Its shortest apps take seconds, and their rho is how long one start takes.
"""

from __future__ import annotations

import msgspec

from astrarium.cluster.workloads import themis
from astrarium.cluster.workloads.apps import DrawnApp, scaled

TESTBED_GPUS = 64
TRACE_LOAD = 50.0  # GPUs wanted on average, of section 2.2


class Drawing(msgspec.Struct, frozen=True):
    """What is drawn. *network_share*: none for the models of Table 4."""

    workload: int = 1
    seed: int = 1
    apps: int = themis.APPS
    as_drawn: bool = False
    network_share: float | None = None

    @property
    def gpu_hours(self) -> float:
        return themis.TESTBED_HOURS * self.apps / themis.APPS


def drawn(drawing: Drawing, gpus: int) -> tuple[DrawnApp, ...]:
    """Return apps in order of arrival."""
    if drawing.as_drawn:
        apps = _as_drawn(drawing, gpus)
    else:
        load = themis.TESTBED_LOAD * gpus / TESTBED_GPUS
        share = drawing.network_share
        apps = themis.on_testbed(drawing.workload, drawing.seed, drawing.apps, load, share)
    return tuple(sorted(apps, key=lambda app: app.arrival))


def _as_drawn(drawing: Drawing, gpus: int) -> tuple[DrawnApp, ...]:
    apps = themis.parametric(drawing.seed, drawing.apps, drawing.network_share)
    if drawing.workload == 2:
        apps = themis.halving(apps, drawing.seed)
    return scaled(apps, drawing.gpu_hours, TRACE_LOAD * gpus / TESTBED_GPUS)
