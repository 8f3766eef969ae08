"""What a wrong plan costs, simulated: batches that take longer than their profile says.

    python benchmarks/serving/parts/wrong_plans.py

Profiles of ResNet50 and of an encoder of the size of BERT-base on an H200, measured on 2026-11-17 with
graphs for powers of two. First ResNet50 alone, whose batches take some percent longer than planned. Then
six of each by Zipf's law, planned with straight lines between the measured sizes, where batches really take
as long as the next graph does; and planned with those steps. The share in time of the requests by their
rate; takes ten seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

import astrarium
from astrarium.serving.scenario import build

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
ENCODER = (0.531, 0.542, 0.584, 0.586, 0.716, 0.718, 1.02, 1.02, 1.692, 1.692, 3.03, 3.076)  # ms
RESNET50 = (0.893, 0.916, 0.991, 0.992, 1.137, 1.139, 1.508, 1.508, 2.383, 2.383, 4.254, 4.254)
GRAPHS = (1, 2, 4, 8, 16, 32, 64)
DELAYS = {"control": "1.2ms", "response": "0.3ms"}
Table = Sequence[int]  # batch times in nanoseconds, by size; none of size 0


def main() -> None:
    rates = (5000, 7479, 10_000, 12_000)
    heading("ResNet50, longer than planned by", rates)
    for percent in (0, 5, 10, 20, 30):
        model = {"resnet50": profile(SIZES, RESNET50)}
        longer = [share(model, rate, lambda table, by=percent: scaled(table, by)) for rate in rates]
        row(f"{percent} %", longer)
    rates = (7647, 9559, 10_500, 11_000, 12_500)
    heading("six of each, planned with", rates)
    straight, steps = (six_of_each(*tables) for tables in ((SIZES, ENCODER, RESNET50), stepped()))
    row("lines, and it were so", [share(straight, rate) for rate in rates])
    row("lines, and they are steps", [share(straight, rate, in_steps) for rate in rates])
    row("steps", [share(steps, rate) for rate in rates])


def profile(sizes: Sequence[int], times: Sequence[float]) -> dict[str, Any]:
    table = {size: f"{time}ms" for size, time in zip(sizes, times, strict=True)}
    return {"profile": {"table": table}, "slo": "25ms", "max_batch": max(sizes)}


def six_of_each(sizes: Sequence[int], *kinds: Sequence[float]) -> dict[str, Any]:
    names = "encoder", "resnet50"
    return {f"{names[k % 2]}{k // 2}": profile(sizes, kinds[k % 2]) for k in range(12)}


def stepped() -> tuple[list[int], list[float], list[float]]:
    """Every graph, and the size just after it, which takes as long as the next."""
    sizes = sorted({*GRAPHS, *(size + 1 for size in GRAPHS if size < max(GRAPHS))})
    at = [SIZES.index(graph_of(size)) for size in sizes]
    return sizes, [ENCODER[place] for place in at], [RESNET50[place] for place in at]


def graph_of(size: int) -> int:
    return min(graph for graph in GRAPHS if graph >= size)


def in_steps(table: Table) -> list[int]:
    largest = max(GRAPHS)
    return [table[graph_of(size)] if 0 < size <= largest else time for size, time in enumerate(table)]


def scaled(table: Table, percent: int) -> list[int]:
    end = max(GRAPHS) + 1  # no batch is larger
    return [*(time + time * percent // 100 for time in table[:end]), *table[end:]]


def share(models: dict[str, Any], rate: float, truth: Any = None) -> float:
    """Return the share in time, where *truth* makes what batches really take of what is planned."""
    workload = {"arrivals": "poisson", "rate": f"{rate}/s", "duration": "8s", "warmup": "1s"}
    workload |= {"popularity": {"zipf": 1.0}} if len(models) > 1 else {}
    scenario = {"cluster": {"gpus": 1}, "models": models, "network": DELAYS, "workload": workload}
    planned = build.truth_tables

    def really(*arguments: Any) -> Any:
        kinds, tables = planned(*arguments)
        return kinds, [[tuple(truth(table)) for table in of_kind] for of_kind in tables]

    with mock.patch.object(build, "truth_tables", really if truth else planned):
        return float(astrarium.simulate(scenario, progress=False).summary.attainment)


def heading(what: str, rates: Sequence[float]) -> None:
    print(f"\n| {what} | {' | '.join(f'{rate}/s' for rate in rates)} |\n| --- |{' --- |' * len(rates)}")


def row(what: str, shares: Sequence[float]) -> None:
    print(f"| {what} | {' | '.join(f'{share:.3f}' for share in shares)} |", flush=True)


if __name__ == "__main__":
    main()
