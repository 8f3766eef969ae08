"""What was measured on the H200 (sharing.json), and the same clients simulated.

A fence costs FENCE for each latency client of the run: when these were measured it asked all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

import msgspec
import numpy as np

from astrarium.core.quantities import MICROSECOND, SECOND, Time
from astrarium_papers.astrarium._sharing_clients import WINDOW, launch_costs, server, trainer
from astrarium_papers.gate_simulation import Outcome, Sharing, alone, profiled, share

GRACE = 2 * SECOND  # in which requests that have come are still answered
FENCE: Time = round(1.5 * MICROSECOND)


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
        (only,) = [run for run in self.runs if run.name == name]
        return only


class Simulated(NamedTuple):
    cost: float
    share: float


def measurements() -> Measurements:
    text = files("astrarium_papers.astrarium").joinpath("sharing.json").read_bytes()
    return msgspec.json.decode(text, type=Measurements)


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
        informed = profiled(sharing, ideal)
        answered = share(pair, informed, WINDOW + GRACE).clients[0]
        beside = share(pair, informed, WINDOW).clients[1]
        return Simulated(p99(answered) / p99(ideal), beside.rate / self._alone[row.be])

    def _trained(self, row: Row, sharing: Sharing) -> Simulated:
        first = trainer(row.hp, self._gaps[row.hp], self._best[row.hp], latency=True)
        ideal = alone(first, WINDOW)
        first_outcome, beside = share(
            [first, self._trainers[row.be]], profiled(sharing, ideal), WINDOW
        ).clients
        return Simulated(first_outcome.rate / ideal.rate, beside.rate / self._alone[row.be])


def p99(outcome: Outcome) -> float:
    """Return the smallest latency that 99 % do not exceed, as the benchmark has it."""
    return float(np.percentile(outcome.latency_ms, 99, method="inverted_cdf"))


def chosen(rows: Sequence[Row], policies: Sequence[str]) -> list[Row]:
    return [row for row in rows if row.policy in policies]
