"""A client of the runs on the H200 is calibrated on itself alone, on nothing else.

- `between`: what its recording lacks of the time that a request, or an iteration where the GPU is what limits
  it, took alone. It is the gap between two kernels of a stream, and what the recording took off too much.
- the launch cost of a training job: where it was slower alone than at its best that day, its CPU was the
  limit, and a launch took the time of an iteration over its kernels. Others get the mean of those in their
  run, as far as they were fast enough for it, or EAGER where there are none.
Requests come at the moments at which they came to the measured server (benchmarks/gpu/clients_serve.py).
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from random import Random
from statistics import mean

import numpy as np

from astrarium.core.processes import Times
from astrarium.core.quantities import MICROSECOND, MILLISECOND, SECOND, Time
from astrarium_papers.gate_simulation import Party
from astrarium_papers.kernels import RECORDED, kernel_set
from astrarium_papers.kernels.trace import KernelTrace

WINDOW = 2 * SECOND
GRAPH_LAUNCH: Time = 10 * MICROSECOND
SEEN: Time = 3 * MICROSECOND
EAGER: Time = 20 * MICROSECOND
AT_ITS_BEST = 0.97  # of the fastest that day


def trace(client: str, purpose: str) -> KernelTrace:
    model, batch = client.split()
    return kernel_set(RECORDED)[f"{model}-{purpose}-{batch}"]


def server(hp: str, busy: float, service_ms: float) -> Party:
    kernels = trace(hp, "inference")
    gaps = len(kernels.launches) - 1
    lacks = service_ms * MILLISECOND - GRAPH_LAUNCH - SEEN - kernels.duration
    come = arrivals(f"0 {hp} poisson {busy}", busy * 1000 / service_ms)
    return Party(
        hp, kernels, True, come, gap=GRAPH_LAUNCH, graph=True, between=_at_least_nothing(lacks / gaps)
    )


def trainer(be: str, gap: Time, best: float, latency: bool = False) -> Party:
    """Return a training client; one with priority waits for each iteration, so that these can be told
    apart."""
    kernels = trace(be, "training")
    lacks = SECOND / best - kernels.duration
    between = _at_least_nothing(lacks / len(kernels.launches))
    return Party(be, kernels, latency, gap=gap, synchronize=latency, between=between)


def _at_least_nothing(ns: float) -> Time:
    return max(0, round(ns))


def arrivals(seed: str, rate: float) -> Times:
    """Return arrivals as the benchmark's server draws them."""
    chance = Random(zlib.crc32(seed.encode()))
    now = 0.0
    times = []
    while (now := now + chance.expovariate(1.0) / rate) < WINDOW / SECOND:
        times.append(int(now * SECOND))
    return np.array(times, np.int64)


def launch_costs(per_second: Mapping[str, float], best: Mapping[str, float]) -> dict[str, Time]:
    """Return the cost of a launch by training job, from how fast each was alone in a run."""
    whole = {
        be: SECOND / rate / len(trace(be, "training").launches) for be, rate in per_second.items()
    }  # no launch can take longer
    slow = [be for be, rate in per_second.items() if rate < AT_ITS_BEST * best[be]]
    usual = mean(whole[be] for be in slow) if slow else float(EAGER)
    return {be: round(most if be in slow else min(usual, most)) for be, most in whole.items()}
