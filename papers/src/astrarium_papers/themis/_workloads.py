"""Themis's apps at the size at which they were run.

The testbed's traces are not public, nor how they were made smaller. `on_testbed` draws apps as the 64 GPUs of
the paper must have seen them. Section 2.2 tells of the trace: 24,000 GPU-hours at its medians. Figure 11 ends
at 1,200. Were tasks made shorter by as much, half of them would end within one lease. But Table 5 has tasks
of 41 and 145 minutes (83 and 580 GPU-minutes on 2 and 4 GPUs), and section 6.2.3 has 35 seconds as 0.2% of
the median app's life and 50 as 2% at the 95th percentile: lives of 4.9 hours, and of 42 minutes at the short
end. So tasks lie between those of Table 5 (lognormal around their geometric mean) and apps have a tenth of
the trace's jobs: that makes 1,000 GPU-hours. They come so fast that half of the apps live about 4.9 hours,
which makes some 20 at a time. In workload 2 a single job stays one. On other clusters they come as much
faster as there are more GPUs.

`as_drawn`: what is printed of the trace (section 2.2) in their place, made shorter until it is 1,000
GPU-hours. Its shortest apps take seconds, and their rho is how long one start takes.
"""

from __future__ import annotations

import msgspec

from astrarium.cluster.workloads.apps import DrawnApp, scaled
from astrarium.cluster.workloads.themis import successive_halving, sweeps
from astrarium.core.errors import InputError
from astrarium.core.quantities import SECOND

TESTBED_GPUS = 64
TESTBED = sweeps.Sizes(3, 9.5, 10, 77 * 60 * SECOND, 0.5, 0.3)
TESTBED_HOURS = 1000.0
TESTBED_LOAD = 90.0
TRACE_LOAD = 50.0  # GPUs wanted on average, of section 2.2


class Drawing(msgspec.Struct, frozen=True):
    """What is drawn. *network_share*: none for the models of Table 4."""

    workload: int = 1
    seed: int = 1
    apps: int = sweeps.APPS
    as_drawn: bool = False
    network_share: float | None = None
    network: str = "k80"

    @property
    def gpu_hours(self) -> float:
        return TESTBED_HOURS * self.apps / sweeps.APPS


def drawn(drawing: Drawing, gpus: int) -> tuple[DrawnApp, ...]:
    """Return apps in order of arrival."""
    if drawing.as_drawn:
        apps = _as_drawn(drawing, gpus)
    else:
        load = TESTBED_LOAD * gpus / TESTBED_GPUS
        share = drawing.network_share
        apps = on_testbed(drawing.workload, drawing.seed, drawing.apps, load, share, drawing.network)
    return tuple(sorted(apps, key=lambda app: app.arrival))


def on_testbed(
    workload: int = 1,
    seed: int = 1,
    apps: int = sweeps.APPS,
    load: float = TESTBED_LOAD,
    network_share: float | None = None,
    network: str = "k80",
) -> tuple[DrawnApp, ...]:
    """Return a workload as the 64 GPUs of the paper must have seen it. Fewer apps are as much less work."""
    if workload not in (1, 2):
        raise InputError("workload", workload, "1 (sweeps) or 2 (successive halving)")
    chosen = sweeps.parametric(seed, apps, network_share, network, TESTBED)
    if workload == 2:
        chosen = tuple(
            successive_halving.halving([app], seed)[0] if len(app.jobs) > 1 else app for app in chosen
        )
    return scaled(chosen, TESTBED_HOURS * apps / sweeps.APPS, load)


def _as_drawn(drawing: Drawing, gpus: int) -> tuple[DrawnApp, ...]:
    apps = sweeps.parametric(drawing.seed, drawing.apps, drawing.network_share, drawing.network)
    if drawing.workload == 2:
        apps = successive_halving.halving(apps, drawing.seed)
    return scaled(apps, drawing.gpu_hours, TRACE_LOAD * gpus / TESTBED_GPUS)
