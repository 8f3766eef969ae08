"""The queue of moving scores: insertion, removal and query, as more and more requests are pending."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from unittest import mock

import numpy as np
import numpy.typing as npt

from _measure import Row, main
from astrarium._testing import HullQueue
from astrarium.core.quantities import MILLISECOND, SECOND
from astrarium.serving.policies._times import BatchTime, mean
from astrarium.serving.policies.orloj import hull
from astrarium.serving.policies.orloj.score import ScoreTable

Floats = npt.NDArray[np.float64]
PENDING = [10, 100, 1_000, 10_000, 100_000]
BAR_AT = 10_000  # pending
BAR = 20.0  # us for an insertion
STEPS = 20_000  # of each kind, at least, in a repetition
RATE = 1e-4 / MILLISECOND  # Orloj's b
SLO = 10 * SECOND


def measure(repeats: int) -> list[Row]:
    rows: list[Row] = []
    for pending in PENDING:
        runs = [one_run(pending, seed) for seed in range(repeats)]
        rows += rows_at(pending, {name: [run[name] for run in runs] for name in runs[0]})
        steps = steps_of_worst(pending) / math.log2(pending) ** 2
        rows.append(Row(f"queue, {pending:,} pending: steps of that / log2(n)^2", "", [steps]))
    return rows


def rows_at(pending: int, costs: dict[str, list[float]]) -> list[Row]:
    """Return costs in us, and in ns over the square of the logarithm."""
    rows = []
    for name, values in costs.items():
        bar = BAR if pending == BAR_AT and "insertion" in name else None
        what = f"queue, {pending:,} pending: {name}"
        rows.append(Row(what, "us", values, bar=bar, less_is_better=True))
        if "insertion" in name:
            scaled = [1000 * value / math.log2(pending) ** 2 for value in values]
            rows.append(Row(f"{what} / log2(n)^2", "ns", scaled, less_is_better=True))
    return rows


def one_run(pending: int, seed: int) -> dict[str, float]:
    generator = np.random.default_rng(seed)
    more = max(10, pending // 10)
    points = orloj_points(generator, pending + more)
    insertion, removal = churn(points[:pending], points[pending:])
    worst, _ = churn(points[:pending], above_all(generator, points, more))
    slopes = np.exp(RATE * generator.uniform(0, SLO, STEPS))
    return {
        "insertion": insertion,
        "removal": removal,
        "query": query(points[:pending], slopes),
        "sorting again instead of a query (numpy)": sorting(points[:pending], slopes),
        "insertion above all others": worst,
    }


def above_all(generator: np.random.Generator, points: Floats, count: int) -> Floats:
    return np.column_stack([generator.choice(points[:, 0], count), 1.0 + np.arange(count)])


def steps_of_worst(pending: int) -> float:
    """Return how often an insertion above all others looks at two subtrees, counted in the Python twin."""
    generator = np.random.default_rng(0)
    points = orloj_points(generator, pending)
    queue = hull.HullQueue()
    for number, point in enumerate(points.tolist()):
        queue.insert(number, *point)
    above = above_all(generator, points, min(100, pending))
    with mock.patch.object(hull, "choose", wraps=hull.choose) as looks:
        for number, point in enumerate(above.tolist()):
            queue.insert(pending + number, *point)
    return looks.call_count / len(above)


def orloj_points(generator: np.random.Generator, count: int) -> Floats:
    """Return requests of four applications, in batches of 8, with deadlines all over the SLO."""
    tables = [ScoreTable(batch_time(generator), RATE) for _ in range(4)]
    kinds = generator.integers(0, 4, count)
    dues = generator.integers(SECOND, SLO, count)
    scores = [tables[kind].point(0, int(due), 0)[:2] for kind, due in zip(kinds, dues, strict=True)]
    return np.array(scores)


def batch_time(generator: np.random.Generator) -> BatchTime:
    """A histogram of two peaks, of up to 7 s: some requests are sure to be in time, others in doubt."""
    samples = np.concatenate([generator.normal(peak, 0.3, 500) for peak in generator.uniform(1, 6, 2)])
    counts, seconds = np.histogram(np.clip(samples, 0.1, 7), bins=32)
    edges = tuple(int(edge * SECOND) for edge in seconds)
    chances = tuple(float(count) / len(samples) for count in counts)
    return BatchTime(edges, chances, mean(edges, chances))


def churn(points: Floats, more: Floats) -> tuple[float, float]:
    """Return the us for an insertion and a removal, of a tenth more (at least ten), over and over."""
    queue = HullQueue()
    queue.insert_all(0, points)
    first = len(points)
    rounds = -(-STEPS // len(more))
    insertion = removal = 0
    for _ in range(rounds):
        insertion += timed(lambda: queue.insert_all(first, more))
        removal += timed(lambda: queue.remove_all(first, len(more)))
    steps = 1000 * rounds * len(more)
    return insertion / steps, removal / steps


def query(points: Floats, slopes: Floats) -> float:
    queue = HullQueue()
    queue.insert_all(0, points)
    return timed(lambda: queue.best_of_all(slopes)) / len(slopes) / 1000


def sorting(points: Floats, slopes: Floats) -> float:
    """Do as a queue without a hull would: compute and sort all scores, to find the first."""
    sampled = slopes[: max(10, STEPS // len(points))]
    return timed(lambda: [order[0] for order in orders(points, sampled)]) / len(sampled) / 1000


def orders(points: Floats, slopes: Floats) -> Iterator[npt.NDArray[np.intp]]:
    for slope in slopes:
        yield np.argsort(-(points[:, 0] * slope + points[:, 1]))


def timed(work: Callable[[], object]) -> int:
    """Return the nanoseconds of this thread's CPU time that the work takes."""
    began = time.thread_time_ns()
    work()
    return time.thread_time_ns() - began


if __name__ == "__main__":
    main(measure, repeats=7)
