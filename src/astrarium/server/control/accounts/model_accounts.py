"""The server's accounts count how calls end: every accepted call in exactly one way, so that all adds up.

    accepted = answered in time + answered late + dropped + failed + open
Plain numbers that the hot path can afford; `metrics` shows them to Prometheus, `statistics` to clients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from astrarium.core.quantities import Time
from astrarium.server import contract, statistics
from astrarium.server.contract import Stages
from astrarium.server.control.accounts.histogram import SIZE_BOUNDS, TIME_BOUNDS, PrometheusHistogram
from astrarium.server.statistics import Duration
from astrarium.serving.ledger import Outcome

OUTCOMES = {
    Outcome.IN_TIME: "in_time",
    Outcome.LATE: "late",
    Outcome.DROPPED: "dropped",
    Outcome.FAILED: "failed",
}


def _times() -> PrometheusHistogram:
    return PrometheusHistogram(TIME_BOUNDS)


class _Sum:
    """It counts how often something happened, and adds up the nanoseconds that it took; neither goes back."""

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
    length: int = 0  # of all their requests
    computed: int = 0  # the same with what these were padded to


@dataclass
class ModelAccounts:
    """A model's accounts count its calls and batches since the server started."""

    name: str
    accepted: int = 0
    ended_in_all: int = 0
    ended: Counter[tuple[str, str]] = field(default_factory=Counter)  # (outcome, reason)
    refused: Counter[str] = field(default_factory=Counter)  # at the door, by kind: never accepted
    retried: int = 0
    split: int = 0  # batches that were run in parts: padding would have changed answers
    beside_graphs: int = 0  # batches that none of the model's graphs could run
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
    numbered: bool = False  # their lengths are numbers of shapes, which come to nothing when added up
    packed: bool = False  # nothing is padded
    length: int = 0  # of all requests that ran, where the model's have lengths
    computed: int = 0  # the same with what they were padded to
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

    def slow(self, split: int, beside_graphs: int) -> None:
        self.split += split
        self.beside_graphs += beside_graphs

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
        if not self.numbered:
            self.length += new.length
            self.computed += new.length if self.packed else new.computed
        self.last_ms = now_ms

    def statistics(self) -> statistics.StatisticsOfModel:
        sums = self.success, self.fail, self.queue, self.inputs, self.compute, self.outputs
        return statistics.StatisticsOfModel(
            self.name,
            contract.ModelCard.version,
            last_inference=self.last_ms,
            inference_count=self.items,
            execution_count=self.compute.count,
            inference_stats=statistics.InferStatistics(*(total.duration() for total in sums)),
            batch_stats=[_batches(size, spent) for size, spent in sorted(self.by_size.items())],
        )


def _batches(size: int, spent: _Sum) -> statistics.BatchStatistics:
    moved = Duration(spent.count, 0)  # not told apart by batch size
    return statistics.BatchStatistics(size, moved, spent.duration(), moved)
