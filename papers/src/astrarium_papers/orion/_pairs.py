"""Pairs of clients under each system: what the latency client and the best-effort one get, against alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from astrarium.core.quantities import Time
from astrarium_papers.findings import Effort
from astrarium_papers.gate_simulation import Outcome, Party, Sharing, alone, profiled, share


class Pair(NamedTuple):
    latency: Party
    best_effort: Party


class Measured(NamedTuple):
    """One pair under one system. Latencies in ms; rates a second; the others are of each alone."""

    p95: float
    p99: float
    p99_alone: float
    rate: float
    rate_alone: float
    best_effort: float
    best_effort_alone: float


def measure(
    pairs: Sequence[Pair], systems: Mapping[str, Sharing], duration: Time, effort: Effort
) -> dict[str, Any]:
    """Return {latency model: {system: {best-effort model: numbers}}}, plain."""
    dedicated = _dedicated([party for pair in pairs for party in pair], duration, effort)
    cases = [(pair, system) for pair in pairs for system in systems]

    def measure_pair(case: tuple[Pair, str]) -> Measured:
        pair, system = case
        effort.say(f"{system}: {pair.latency.name} beside {pair.best_effort.name}")
        return _one(pair, systems[system], dedicated, duration)

    by_model: dict[str, Any] = {}
    for (pair, system), numbers in zip(cases, effort.map(measure_pair, cases), strict=True):
        by_system = by_model.setdefault(pair.latency.name, {}).setdefault(system, {})
        by_system[pair.best_effort.name] = numbers._asdict()
    return by_model


def _dedicated(parties: Iterable[Party], duration: Time, effort: Effort) -> dict[int, Outcome]:
    """Return each party alone; parties that several pairs share are measured once."""
    different = list({id(party): party for party in parties}.values())
    outcomes = effort.map(lambda party: alone(party, duration), different)
    return {id(party): outcome for party, outcome in zip(different, outcomes, strict=True)}


def _one(pair: Pair, sharing: Sharing, dedicated: dict[int, Outcome], duration: Time) -> Measured:
    ideal = dedicated[id(pair.latency)]
    other = dedicated[id(pair.best_effort)]
    latency_client, beside = share(pair, profiled(sharing, ideal), duration).clients
    return Measured(
        p95=latency_client.percentile(95),
        p99=latency_client.percentile(99),
        p99_alone=ideal.percentile(99),
        rate=latency_client.rate,
        rate_alone=ideal.rate,
        best_effort=beside.rate,
        best_effort_alone=other.rate,
    )
