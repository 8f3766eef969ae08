"""Figure 4.12: the cost of an insertion into the priority queue, and of a query, by how many are pending.

Every point lies on the hull, so that no insertion finds it unchanged. Numbers are of a wall clock, so they
are this machine's; claims are about growth, and generous.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from astrarium.core.optional import extension
from astrarium.core.random_streams import stream
from astrarium.serving.policies.orloj.hull import HullQueue
from astrarium_papers.findings import Claim, Effort, Findings, Row

TITLE = "Cost of the priority queue (Figure 4.12)"
SAMPLES = 100  # operations in each timing, as in the paper
PAPER_US = 500.0  # "less than 0.5 ms"
SLACK = 2.5  # on what a logarithm squared would grow
MACHINE = "by this machine's clock"


def run(effort: Effort) -> Findings:
    sizes = effort.pick([10, 100, 1000], [10, 30, 100, 300, 1000, 3000, 10_000])
    repeats = effort.pick(3, 15)
    data: dict[str, Any] = {"pending": sizes, "insert_us": [], "query_us": []}
    for size in sizes:
        effort.say(f"{size:,} pending")
        insert, query = _costs(size, repeats)
        data["insert_us"].append(insert)
        data["query_us"].append(query)
    return Findings(_rows(data), _claims(data), data)


def _costs(size: int, repeats: int) -> tuple[float, float]:
    """Return microseconds of an insertion and of a query, the median over repetitions with points of their
    own."""
    chance = stream(1, "hull", str(size))
    queue = _queue()
    for id_, point in enumerate(_points(chance, size)):
        queue.insert(id_, *point)
    inserted = []
    queried = []
    for _ in range(repeats):
        points = [(id_, *point) for id_, point in enumerate(_points(chance, SAMPLES), size)]
        inserted.append(_timed(queue.insert, points))
        for id_, _alpha, _beta in points:
            queue.remove(id_)
        queried.append(_timed(queue.best, [(alpha / beta,) for _, alpha, beta in points]))
    return median(inserted), median(queried)


def _points(chance: Any, count: int) -> list[tuple[float, float]]:
    """Return points on a quarter of a circle."""
    return [(math.sin(angle), math.cos(angle)) for angle in (chance.random(count) * math.pi / 2).tolist()]


def _queue() -> Any:
    """Return a queue, the native twin where it was built."""
    native = extension("_testing")
    return HullQueue() if native is None else native.HullQueue()


def _timed(operation: Callable[..., object], arguments: Sequence[tuple[float, ...]]) -> float:
    start = time.perf_counter()
    for values in arguments:
        operation(*values)
    return (time.perf_counter() - start) * 1e6 / len(arguments)


def _rows(data: dict[str, Any]) -> list[Row]:
    rows = []
    for size, insert, query in zip(*data.values(), strict=True):
        rows.append(Row(f"insertion with {size:,} pending", insert, (0.0, PAPER_US), "us", 0.0, MACHINE))
        rows.append(Row(f"query with {size:,} pending", query, unit="us", note=MACHINE))
    return rows


def _claims(data: dict[str, Any]) -> list[Claim]:
    few = data["pending"][-3]
    many = data["pending"][-1]
    grown = data["insert_us"][-1] / data["insert_us"][-3]
    expected = (math.log(many) / math.log(few)) ** 2
    query = data["query_us"][-1] / data["query_us"][-3]
    return [
        Claim(
            "an insertion takes less than 0.5 ms with thousands pending",
            max(data["insert_us"]) < PAPER_US,
            f"{max(data['insert_us']):.1f} us at most, {MACHINE}",
        ),
        Claim(
            "insertion grows as the logarithm squared",
            grown <= SLACK * expected,
            f"{grown:.2f} times from {few:,} to {many:,}, where log^2 grows {expected:.2f} times",
        ),
        Claim(
            "the time of a query hardly depends on how many are pending",
            query <= SLACK * math.sqrt(expected),
            f"{query:.2f} times from {few:,} to {many:,}; ours descends a tree, which takes log n",
        ),
    ]


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, axes = axes_row(2)
    pending = data["pending"]
    scale = data["insert_us"][-1] / math.log(pending[-1]) ** 2
    for axis, name in zip(axes, ("insert", "query"), strict=True):
        axis.plot(pending, data[f"{name}_us"], marker="o", markersize=4, color="#0072B2", label=name)
        axis.set(xscale="log", xlabel="pending requests", ylabel="microseconds", ylim=(0, None))
    fitted = [scale * math.log(size) ** 2 for size in pending]
    axes[0].plot(pending, fitted, color="#999999", ls=":", label="log^2, through the last point")
    axes[0].legend()
    axes[1].legend()
    save(figure, path)
