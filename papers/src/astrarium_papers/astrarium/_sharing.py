"""What was measured on the H200 (sharing.json), and the same clients simulated.

A client is calibrated on itself alone, on nothing else:
- `between`: what its recording lacks of the time that a request, or an iteration where the GPU is what limits
  it, took alone. It is the gap between two kernels of a stream, and what the recording took off too much.
- the launch cost of a training job: where it was slower alone than at its best that day, its CPU was the
  limit, and a launch took the time of an iteration over its kernels. Others get the mean of those in their
  run, as far as they were fast enough for it, or EAGER where there are none.
Requests come at the moments at which they came to the measured server (benchmarks/gpu/clients_arrivals.py).
A fence costs FENCE for each latency client of the run: when these were measured it asked all of them.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from random import Random
from statistics import mean
from typing import Any, NamedTuple

import msgspec
import numpy as np

from astrarium.core.processes import Times
from astrarium.core.quantities import MICROSECOND, MILLISECOND, SECOND, Time
from astrarium_papers.gate_simulation import Outcome, Party, Sharing, alone, profiled, share
from astrarium_papers.kernels import RECORDED, kernel_set
from astrarium_papers.kernels.trace import KernelTrace

WINDOW = 2 * SECOND
GRACE = 2 * SECOND  # in which requests that have come are still answered
GRAPH_LAUNCH: Time = 10 * MICROSECOND
SEEN: Time = 3 * MICROSECOND
EAGER: Time = 20 * MICROSECOND
FENCE: Time = round(1.5 * MICROSECOND)
AT_ITS_BEST = 0.97  # of the fastest that day


class Row(msgspec.Struct, frozen=True, array_like=True):
    """One measured pair. `cost`: p99 over alone, or throughput over alone where the high-priority client
    trains."""

    policy: str
    hp: str
    busy: float
    be: str
    cost: float
    share: float
    left: float


class MeasuredRun(msgspec.Struct, frozen=True):
    name: str
    command: str
    latency_clients: int
    service_ms: dict[str, float]
    alone: dict[str, float]  # iterations a second
    rows: list[Row]


class Measurements(msgspec.Struct, frozen=True):
    date: str
    gpu: str
    versions: dict[str, str]
    best_alone: dict[str, float]
    runs: list[MeasuredRun]

    def run(self, name: str) -> MeasuredRun:
        (found,) = [run for run in self.runs if run.name == name]
        return found


class Simulated(NamedTuple):
    cost: float
    share: float


def measurements() -> Measurements:
    text = files("astrarium_papers.astrarium").joinpath("sharing.json").read_bytes()
    return msgspec.json.decode(text, type=Measurements)


def trace(client: str, purpose: str) -> KernelTrace:
    model, batch = client.split()
    return kernel_set(RECORDED)[f"{model}-{purpose}-{batch}"]


# Clients, calibrated alone


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


# Pairs


class Bench:
    """The clients of one run, and what they do alone in simulation."""

    def __init__(self, run: MeasuredRun, best: Mapping[str, float]) -> None:
        self._run = run
        self._best = best
        self._gaps = launch_costs(run.alone, best)
        self._trainers = {be: trainer(be, gap, best[be]) for be, gap in self._gaps.items()}
        self._alone = {be: alone(party, WINDOW).rate for be, party in self._trainers.items()}

    def simulate(self, row: Row) -> Simulated:
        name, _, settings = row.policy.partition(":")
        knobs: dict[str, Any] = {
            knob: float(value) for knob, value in (word.split("=") for word in settings.split(",") if word)
        }
        limit = knobs.pop("search_limit", 0.0)
        knobs = {knob: int(value) for knob, value in knobs.items()}
        model = {"fence": FENCE * self._run.latency_clients}
        sharing = Sharing(name, knobs=knobs, search_limit=limit, model=model)
        return self._trained(row, sharing) if row.busy == 1.0 else self._served(row, sharing)

    def _served(self, row: Row, sharing: Sharing) -> Simulated:
        first = server(row.hp, row.busy, self._run.service_ms[row.hp])
        pair = [first, self._trainers[row.be]]
        ideal = alone(first, WINDOW + GRACE)
        told = profiled(sharing, ideal)
        answered = share(pair, told, WINDOW + GRACE).clients[0]
        beside = share(pair, told, WINDOW).clients[1]
        return Simulated(p99(answered) / p99(ideal), beside.rate / self._alone[row.be])

    def _trained(self, row: Row, sharing: Sharing) -> Simulated:
        first = trainer(row.hp, self._gaps[row.hp], self._best[row.hp], latency=True)
        ideal = alone(first, WINDOW)
        found, beside = share([first, self._trainers[row.be]], profiled(sharing, ideal), WINDOW).clients
        return Simulated(found.rate / ideal.rate, beside.rate / self._alone[row.be])


def p99(outcome: Outcome) -> float:
    """The smallest latency that 99 % do not exceed, as the benchmark has it."""
    return float(np.percentile(outcome.latency_ms, 99, method="inverted_cdf"))


def chosen(rows: Sequence[Row], policies: Sequence[str]) -> list[Row]:
    return [row for row in rows if row.policy in policies]
