"""When requests of open-loop clients come to a GPU that they share."""

from __future__ import annotations

import numpy as np

from astrarium.core import processes
from astrarium.core.errors import InputError, one_of
from astrarium.core.processes import Stretch, Times
from astrarium.core.quantities import MILLISECOND, Time
from astrarium.core.random_streams import stream
from astrarium.serving.traces import read_trace


def poisson(rate: float, duration: Time, seed: int, name: str) -> Times:
    """Return Poisson arrivals of *rate* a second; the name keeps clients apart that share a seed."""
    stretches = [Stretch(0, duration, rate)]
    moments = processes.poisson(stream(seed, "gate", "poisson", name), processes.total(stretches))
    return processes.stretched(moments, stretches)


def uniform(rate: float, duration: Time, seed: int, name: str) -> Times:
    stretches = [Stretch(0, duration, rate)]
    moments = processes.uniform(stream(seed, "gate", "uniform", name), processes.total(stretches))
    return processes.stretched(moments, stretches)


def recorded(path: str, model: str, duration: Time) -> Times:
    """Return the arrivals of one model of a trace file, such as the Apollo trace of the DISB suite."""
    trace = read_trace(path)
    models = [kind[0] for kind in trace.kinds]
    if model not in models:
        raise InputError("model", model, one_of(models, model), path)
    times = np.array(trace.time, np.int64)
    kinds = np.array(trace.kind)
    wanted: Times = times[kinds == models.index(model)]
    return wanted[wanted < duration]


def bursty(duration: Time, seed: int, name: str, burst: int = 4, apart: Time = 204 * MILLISECOND) -> Times:
    """Return arrivals that stand in for Apollo's object detection: bursts of four requests 3 to 8 ms apart,
    about 200 ms from one burst to the next, as in the trace's stream of that kind (19 requests/s)."""
    random = stream(seed, "gate", "bursty", name)
    bursts = int(2 * duration / apart) + 4
    starts = random.gamma(16.0, apart / 16.0, bursts).cumsum()
    inside = random.uniform(3 * MILLISECOND, 8 * MILLISECOND, (bursts, burst)).cumsum(axis=1)
    times: Times = np.sort((starts[:, None] + inside).ravel()).astype(np.int64)
    return times[times < duration]
