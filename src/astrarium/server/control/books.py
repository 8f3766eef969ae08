"""The server's books count how calls end: every accepted call in exactly one way, so that all adds up.

    accepted = answered in time + answered late + dropped + failed + open
Plain numbers that the hot path can afford; `metrics` shows them to Prometheus, `statistics` to clients.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from astrarium.core.quantities import MILLISECOND, Time
from astrarium.server import contract
from astrarium.server.contract import Duration, Stages
from astrarium.serving.state import Outcome

# Upper bounds in seconds: from a fast path to an objective of seconds.
TIME_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
SIZE_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
OUTCOMES = {
    Outcome.IN_TIME: "in_time",
    Outcome.LATE: "late",
    Outcome.DROPPED: "dropped",
    Outcome.FAILED: "failed",
}


class PrometheusHistogram:
    """A Prometheus histogram has counts by upper bound, and the sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float, count: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += count * value

    def enter(self, counts: Sequence[int], ns: Time) -> None:
        """Enter times that were counted by the same bounds elsewhere."""
        self.counts = list(map(int.__add__, self.counts, counts))
        self.sum += ns / 1e9


def _times() -> PrometheusHistogram:
    return PrometheusHistogram(TIME_BOUNDS)


class _Sum:
    """A sum is a count and its nanoseconds."""

    __slots__ = ("count", "ns")

    def __init__(self) -> None:
        self.count = self.ns = 0

    def add(self, ns: Time, count: int = 1) -> None:
        self.count += count
        self.ns += ns

    def duration(self) -> Duration:
        return Duration(self.count, self.ns)


class BatchesDone(NamedTuple):
    """Batches of a model that ended well: counts by how long they took, and nanoseconds of their stages."""

    execution: Sequence[int]  # by the upper bounds of TIME_BOUNDS
    gathering: Time
    writing: Time
    computing: Mapping[int, tuple[int, Time]]  # by size: how many, and how long in all


@dataclass
class ModelBooks:
    """A model's books count its calls and batches since the server started."""

    name: str
    accepted: int = 0
    ended_in_all: int = 0
    ended: Counter[tuple[str, str]] = field(default_factory=Counter)  # (outcome, reason)
    refused: Counter[str] = field(default_factory=Counter)  # at the door, by kind: never accepted
    retried: int = 0
    items: int = 0
    latency: PrometheusHistogram = field(default_factory=_times)  # of answered calls, from receipt to answer
    queueing: PrometheusHistogram = field(default_factory=_times)
    execution: PrometheusHistogram = field(default_factory=_times)
    batch_size: PrometheusHistogram = field(default_factory=lambda: PrometheusHistogram(SIZE_BOUNDS))
    success: _Sum = field(default_factory=_Sum)
    fail: _Sum = field(default_factory=_Sum)
    queue: _Sum = field(default_factory=_Sum)
    inputs: _Sum = field(default_factory=_Sum)
    compute: _Sum = field(default_factory=_Sum)
    outputs: _Sum = field(default_factory=_Sum)
    by_size: dict[int, _Sum] = field(default_factory=dict)
    last_ms: int = 0  # of the wall clock
    declined: int = 0  # calls that asked for no more than was promised, refused or dropped all the same
    declined_because: str = ""  # the last of them
    refusing: str = ""  # why the model is said to refuse everybody; empty where it is not
    failing: str = ""  # why it is said to fail every call; empty where it is not

    @property
    def open(self) -> int:
        return self.accepted - self.ended_in_all

    def decline(self, reason: str) -> None:
        self.declined += 1
        self.declined_because = reason

    def call_ended(self, outcome: Outcome, reason: str, took: Time) -> None:
        self.ended_in_all += 1
        self.ended[OUTCOMES[outcome], reason] += 1
        (self.success if outcome in (Outcome.IN_TIME, Outcome.LATE) else self.fail).add(took)

    def answered(self, stages: Stages, rows: int) -> None:
        self.items += rows
        self.latency.add((stages.answered - stages.received) / 1e9)
        self.queueing.add((stages.started - stages.received) / 1e9)
        self.queue.add(stages.started - stages.received, rows)

    def batches_done(self, new: BatchesDone, now_ms: int) -> None:
        for size, (count, ns) in new.computing.items():
            self.batch_size.add(size, count)
            self.compute.add(ns, count)
            self.by_size.setdefault(size, _Sum()).add(ns, count)
        count, computing = map(sum, zip(*new.computing.values(), strict=True))
        self.execution.enter(new.execution, new.gathering + computing + new.writing)
        self.inputs.add(new.gathering, count)
        self.outputs.add(new.writing, count)
        self.last_ms = now_ms

    def statistics(self) -> contract.StatisticsOfModel:
        sums = self.success, self.fail, self.queue, self.inputs, self.compute, self.outputs
        return contract.StatisticsOfModel(
            self.name,
            contract.ModelCard.version,
            last_inference=self.last_ms,
            inference_count=self.items,
            execution_count=self.compute.count,
            inference_stats=contract.InferStatistics(*(each.duration() for each in sums)),
            batch_stats=[_batches(size, spent) for size, spent in sorted(self.by_size.items())],
        )


def _batches(size: int, spent: _Sum) -> contract.BatchStatistics:
    moved = Duration(spent.count, 0)  # not told apart by batch size
    return contract.BatchStatistics(size, moved, spent.duration(), moved)


Histogram = tuple[Sequence[int], int]  # counts by upper bound, and nanoseconds
Sum = tuple[int, int]  # a count, and nanoseconds
_NO_TIMES: Histogram = ([0] * (len(TIME_BOUNDS) + 1), 0)


class Tally(NamedTuple):
    """A tally is what network threads have counted of a model's calls, in all or since the last time."""

    accepted: int = 0
    items: int = 0
    declined: int = 0
    ended: Mapping[tuple[str, str], int] = {}  # by outcome and cause
    refused: Mapping[str, int] = {}  # by kind
    latency: Histogram = _NO_TIMES
    queueing: Histogram = _NO_TIMES
    success: Sum = (0, 0)
    fail: Sum = (0, 0)
    queue: Sum = (0, 0)


def growth(before: Any, now: Any) -> Any:
    """Return what numbers have grown by, in whatever they are wrapped."""
    if isinstance(now, int):
        return now - before
    if isinstance(now, Mapping):
        return {key: number - before.get(key, 0) for key, number in now.items()}
    return tuple(map(growth, before, now))


def enter(books: ModelBooks, new: Tally) -> None:
    """Enter what network threads have newly counted in a model's books."""
    books.accepted += new.accepted
    books.items += new.items
    if new.declined:
        books.declined += new.declined
        books.declined_because = "it is overloaded"
    books.ended.update({key: number for key, number in new.ended.items() if number})
    books.ended_in_all += sum(new.ended.values())
    books.refused.update({kind: number for kind, number in new.refused.items() if number})
    for histogram, (counts, ns) in ((books.latency, new.latency), (books.queueing, new.queueing)):
        histogram.enter(counts, ns)
    for total, (number, ns) in (
        (books.success, new.success),
        (books.fail, new.fail),
        (books.queue, new.queue),
    ):
        total.add(ns, number)


class LastMinute:
    """The last minute is kept in steps of one second, for autoscaling advice and rates."""

    SECONDS = 60

    def __init__(self) -> None:
        self._rows: dict[int, list[int]] = {}  # by second: ended, good, busy nanoseconds

    def add(self, now: Time, ended: int = 0, good: int = 0, busy: Time = 0) -> None:
        second = now // (1000 * MILLISECOND)
        row = self._rows.get(second)
        if row is None:
            row = self._rows[second] = [0, 0, 0]
            for old in [key for key in self._rows if key < second - self.SECONDS]:
                del self._rows[old]
        row[0] += ended
        row[1] += good
        row[2] += busy

    def totals(self, now: Time) -> tuple[int, int, Time]:
        """Return how many calls ended and were good over the last minute, and the busy nanoseconds."""
        since = now // (1000 * MILLISECOND) - self.SECONDS
        rows = [row for second, row in self._rows.items() if second > since]
        return sum(row[0] for row in rows), sum(row[1] for row in rows), sum(row[2] for row in rows)
