"""Figure 2.9: three jobs that start 15 s apart share the throughput of a GPU under FAIR.

All train inception3 with batches of 50. How many iterations each runs is in the authors' public repository
(benchmarks/exps/card250.py): 145, 75 and 35.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from astrarium.core.quantities import SECOND
from astrarium_papers.findings import Claim, Effort, Findings, Row
from astrarium_papers.salus._settings import Iteration, iterations_of, named

TITLE = "Three jobs share a GPU's throughput under FAIR (Figure 2.9)"
WORKLOAD = "inception3_50"
BATCH = 50
ITERATIONS = (145, 75, 35)
STARTS_S = (0, 15, 30)
WINDOW_S = 3
SHARES_EQUAL = 0.05
_EQUAL = "equal jobs that take turns: any iterations would give it"
_FREE = "switching costs nothing in simulation; on a GPU it is measured"


def run(effort: Effort) -> Findings:
    arrivals = [
        (at * SECOND, named(number, WORKLOAD, count))
        for number, (at, count) in enumerate(zip(STARTS_S, ITERATIONS, strict=True))
    ]
    fair = iterations_of("fair", arrivals)
    fifo = iterations_of("fifo", arrivals)
    data = {
        "window_s": WINDOW_S,
        "images_per_s": throughput(fair),
        "ends_s": [max(end for job, _, end in fair if job == number) / SECOND for number in range(3)],
        "fifo": {"images_per_s": throughput(fifo)},
    }
    return Findings(_rows(data), _claims(data), data)


def throughput(iterations: list[Iteration]) -> list[list[float]]:
    """Return, by job, images per second in each window; an iteration counts where it ran, in parts."""
    windows = max(end for _, _, end in iterations) // (WINDOW_S * SECOND) + 1
    counts = [[0.0] * windows for _ in ITERATIONS]
    for job, start, end in iterations:
        for place in range(start // (WINDOW_S * SECOND), end // (WINDOW_S * SECOND) + 1):
            low = place * WINDOW_S * SECOND
            high = (place + 1) * WINDOW_S * SECOND
            inside = max(0, min(end, high) - max(start, low))
            counts[job][place] += BATCH * inside / (end - start) / WINDOW_S
    return counts


def _between(curves: list[list[float]], start: float, end: float) -> list[float]:
    """Return each job's images per second, in the whole windows between two instants."""
    first = -(-int(start) // WINDOW_S)
    last = int(end) // WINDOW_S
    return [sum(curve[first:last]) / (last - first) for curve in curves]


def _phases(data: dict[str, Any]) -> dict[str, list[float]]:
    ends = data["ends_s"]
    curves = data["images_per_s"]
    return {
        "one": _between(curves, 0, STARTS_S[1]),
        "two": _between(curves, STARTS_S[1], STARTS_S[2]),
        "three": _between(curves, STARTS_S[2], ends[2]),
        "two again": _between(curves, ends[2] + WINDOW_S, ends[1]),
    }


def _rows(data: dict[str, Any]) -> list[Row]:
    phases = _phases(data)
    alone = sum(phases["one"])
    rows = [Row("throughput alone", alone, unit="images/s")]
    for name, paper in (("two", 1 / 2), ("three", 1 / 3), ("two again", 1 / 2)):
        ours = phases[name][0] / sum(phases[name])
        what = f"share of the first job while {name} run"
        rows.append(Row(what, ours, paper, "", SHARES_EQUAL, _EQUAL, given=True))
    kept = sum(phases["three"]) / alone
    rows.append(Row("aggregate while three run over alone", kept, 1.0, "x", SHARES_EQUAL, _FREE, given=True))
    return rows


def _claims(data: dict[str, Any]) -> list[Claim]:
    three = _phases(data)["three"]
    ends = data["ends_s"]
    during = _between(data["fifo"]["images_per_s"], STARTS_S[2], STARTS_S[2] + 2 * WINDOW_S)
    return [
        Claim(
            "three jobs get equal throughput",
            max(three) <= (1 + SHARES_EQUAL) * min(three),
            ", ".join(f"{rate:.0f}" for rate in three) + " images/s: they are equal jobs",
            given=True,
        ),
        Claim(
            "they end in the reverse order",
            ends[2] < ends[1] < ends[0],
            ", ".join(f"{end:.0f} s" for end in ends),
        ),
        Claim(
            "FIFO does not share",
            min(during) == 0,
            "the later jobs get nothing until the first has ended: so it is defined",
            given=True,
        ),
    ]


def draw(data: dict[str, Any], path: Path) -> None:
    from astrarium_papers.drawing import axes_row, save

    figure, (axis,) = axes_row(1, width=6.0)
    times = [place * WINDOW_S for place in range(len(data["images_per_s"][0]))]
    for number, curve in enumerate(data["images_per_s"]):
        axis.step(times, curve, where="post", label=f"job {number + 1}")
    totals = [sum(rates) for rates in zip(*data["images_per_s"], strict=True)]
    axis.step(times[:-1], totals[:-1], where="post", color="black", ls="--", label="together")
    axis.set(xlabel="time (s)", ylabel="images/s", ylim=(0, None))
    axis.legend(fontsize=8)
    save(figure, path)
