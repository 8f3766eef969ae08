"""One run in numbers. The names are an interface: tests and other tools hold on to them.

Measured are the requests that arrive from the end of the warm-up until arrivals stop; GPU time counts
inside the same span. Percentiles are over answered requests, in time or late; whether dropped ones cost
a model its objective is what `attainment` says. Where there is nothing to measure, a value is null.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import msgspec
import numpy as np

from astrarium.core.errors import BrokenBooks
from astrarium.core.quantities import Time, to_ms, to_seconds
from astrarium.serving.autoscale import Advice, advise, occupancy
from astrarium.serving.ledger import Fate, Outcome
from astrarium.serving.record import Ints, ServingRecord
from astrarium.serving.report.padding import Work, extents, work


class Outcomes(msgspec.Struct, frozen=True):
    in_time: int
    late: int
    dropped: int
    failed: int

    @property
    def total(self) -> int:
        return self.in_time + self.late + self.dropped + self.failed


class ModelSummary(msgspec.Struct, frozen=True):
    slo_ms: float
    requests: int
    offered_rate: float
    goodput_rate: float
    attainment: float | None
    p50_ms: float | None
    p99_ms: float | None
    mean_batch: float | None  # over the batches that answered a measured request
    batches: int
    outcomes: Outcomes
    mean_length: float | None = None  # of the requests, where they have lengths
    padding: float | None = None  # the share of what was computed that nobody had asked for


class Gpus(msgspec.Struct, frozen=True):
    """`wasted_fraction` is the part of the GPU time that went into preempted batches and their recovery;
    it is part of `busy_fraction`."""

    count: int
    used: int
    busy_fraction: float
    idle_fraction: float
    wasted_fraction: float


class Worst(msgspec.Struct, frozen=True):
    model: str
    attainment: float


class Summary(msgspec.Struct, frozen=True):
    policy: str
    seed: int
    engine: str
    requests: int
    offered_rate: float
    attainment: float | None
    goodput_rate: float
    outcomes: Outcomes
    dropped_reasons: dict[str, int]
    failed_reasons: dict[str, int]
    worst: Worst | None
    models: dict[str, ModelSummary]
    gpus: Gpus
    autoscale: Advice
    warmup_s: float
    duration_s: float
    wall_s: float
    cpu_s: float
    padding: float | None = None  # of the models that have lengths


def summarize(record: ServingRecord) -> Summary:
    span = to_seconds(record.duration - record.warmup)
    measured = measured_requests(record)
    counts = np.bincount(record.requests.outcome[measured], minlength=5)
    if counts[Outcome.OPEN]:
        raise BrokenBooks(f"{counts[Outcome.OPEN]} requests of the run have no outcome")
    outcomes = _outcomes(counts)
    done = work(record, measured)
    models = _models(record, measured, span, done)
    gpus = _gpus(record)
    attainment = _ratio(outcomes.in_time, outcomes.total)
    bad_rate = 0.0 if attainment is None else 1 - attainment
    return Summary(
        policy=record.policy,
        seed=record.seed,
        engine=record.engine,
        requests=outcomes.total,
        offered_rate=_rate(outcomes.total, span),
        attainment=attainment,
        goodput_rate=_rate(outcomes.in_time, span),
        outcomes=outcomes,
        dropped_reasons=_reasons(record, measured, Outcome.DROPPED),
        failed_reasons=_reasons(record, measured, Outcome.FAILED),
        worst=_worst(models),
        models=models,
        gpus=gpus,
        autoscale=advise(gpus.count, bad_rate, gpus.idle_fraction),
        warmup_s=to_seconds(record.warmup),
        duration_s=to_seconds(record.duration),
        wall_s=record.wall_s,
        cpu_s=record.cpu_s,
        padding=reduce(Work.plus, done, Work()).padding,
    )


def measured_requests(record: ServingRecord) -> Ints:
    """Return the numbers of the requests that count."""
    arrival = record.requests.arrival
    return np.flatnonzero((arrival >= record.warmup) & (arrival < record.duration))


def busy_time(record: ServingRecord) -> tuple[Ints, Ints]:
    """Return how long each GPU was busy inside the measured span, and how much of that was wasted.

    Replicas that share a GPU may run at the same time; that time counts once.
    """
    started, finished = occupancy(record.batches, record.setup.preemption_cost)
    started, finished = (np.clip(times, record.warmup, record.duration) for times in (started, finished))
    lost = np.where(record.batches.fate == Fate.PREEMPTED, finished - started, 0)
    return _covered(record, started, finished), _sums(record.batches.gpu, lost, len(record.setup.gpus))


def _covered(record: ServingRecord, started: Ints, finished: Ints) -> Ints:
    """Return the time that batches cover on each GPU.

    In order of their starts, each adds what goes beyond all those before it on its GPU.
    """
    gpu = record.batches.gpu.astype(np.int64)
    apart = gpu * (record.duration + 1)  # a stretch of its own for each GPU
    order = np.argsort(started + apart, kind="stable")
    ends = np.maximum.accumulate((finished + apart)[order])
    before = np.concatenate([apart[order[:1]], ends[:-1]])
    added = np.maximum(ends - np.maximum(before, (started + apart)[order]), 0)
    return _sums(gpu[order], added, len(record.setup.gpus))


def _sums(places: Ints, values: Ints, count: int) -> Ints:
    """Return the sum of the values at each of so many places."""
    sums = np.zeros(count, np.int64)
    np.add.at(sums, places, values)
    return sums


def _gpus(record: ServingRecord) -> Gpus:
    busy, wasted = busy_time(record)
    available = max(len(busy) * (record.duration - record.warmup), 1)
    fraction = min(int(busy.sum()) / available, 1.0)
    return Gpus(
        count=len(busy),
        used=int(np.count_nonzero(busy)),
        busy_fraction=fraction,
        idle_fraction=1 - fraction,
        wasted_fraction=int(wasted.sum()) / available,
    )


def _models(
    record: ServingRecord, measured: Ints, span: float, done: Sequence[Work]
) -> dict[str, ModelSummary]:
    names = record.setup.models
    requests = record.requests
    model = requests.model[measured]
    counts = np.bincount(model * 5 + requests.outcome[measured], minlength=5 * len(names)).reshape(-1, 5)
    latencies = _latencies_by_model(record, measured)
    sizes, batches = _batch_sizes(record, measured)
    lengths = np.bincount(model, extents(record)[measured], len(names))
    plain = [
        _model(spec.slo, counts[i], latencies[i], int(sizes[i]), int(batches[i]), span)
        for i, spec in enumerate(names)
    ]
    return {
        spec.name: _with_lengths(summary, float(lengths[i]), done[i]) if spec.lengths else summary
        for i, (spec, summary) in enumerate(zip(names, plain, strict=True))
    }


def _with_lengths(summary: ModelSummary, lengths: float, done: Work) -> ModelSummary:
    mean = lengths / summary.requests if summary.requests else None
    return msgspec.structs.replace(summary, mean_length=mean, padding=done.padding)


def _model(slo: Time, counts: Ints, latency: Ints, size: int, batches: int, span: float) -> ModelSummary:
    outcomes = _outcomes(counts)
    p50, p99 = percentiles(latency, (50, 99))
    return ModelSummary(
        slo_ms=to_ms(slo),
        requests=outcomes.total,
        offered_rate=_rate(outcomes.total, span),
        goodput_rate=_rate(outcomes.in_time, span),
        attainment=_ratio(outcomes.in_time, outcomes.total),
        p50_ms=p50,
        p99_ms=p99,
        mean_batch=_ratio(size, batches),
        batches=batches,
        outcomes=outcomes,
    )


def percentiles(latency: Ints, percents: tuple[int, ...]) -> tuple[float | None, ...]:
    """Return percentiles in milliseconds, by nearest rank.

    That is the smallest latency that so many percent do not exceed.
    """
    if not len(latency):
        return (None,) * len(percents)
    ranks = [max(-(-percent * len(latency) // 100), 1) - 1 for percent in percents]
    ordered = np.partition(latency, ranks)
    return tuple(to_ms(int(ordered[rank])) for rank in ranks)


def _latencies_by_model(record: ServingRecord, measured: Ints) -> list[Ints]:
    requests = record.requests
    outcome = requests.outcome[measured]
    answered = measured[(outcome == Outcome.IN_TIME) | (outcome == Outcome.LATE)]
    model = requests.model[answered]
    if len(record.setup.models) <= np.iinfo(np.uint16).max:
        model = model.astype(np.uint16)  # numpy sorts 16 bits by radix, several times faster
    ordered = answered[np.argsort(model, kind="stable")]
    latency = requests.done[ordered] - requests.arrival[ordered]
    edges = np.cumsum(np.bincount(model, minlength=len(record.setup.models)))[:-1]
    return np.split(latency, edges)


def _batch_sizes(record: ServingRecord, measured: Ints) -> tuple[Ints, Ints]:
    """Return, for each model, requests in, and number of, batches that answered a measured request."""
    batches = record.batches
    models = len(record.setup.models)
    batch = record.requests.batch[measured]
    counts = np.zeros(len(batches.fate), bool)
    counts[batch[batch >= 0]] = True
    counts &= batches.fate == Fate.FINISHED
    model = batches.model[counts]
    return _sums(model, batches.size[counts], models), np.bincount(model, minlength=models)


def _reasons(record: ServingRecord, measured: Ints, outcome: Outcome) -> dict[str, int]:
    requests = record.requests
    codes = requests.reason[measured[requests.outcome[measured] == outcome]]
    counts = np.bincount(codes, minlength=len(record.reasons)).tolist()
    named = [(record.reasons[code] or "unstated", count) for code, count in enumerate(counts) if count]
    return dict(sorted(named, key=lambda pair: (-pair[1], pair[0])))


def _worst(models: dict[str, ModelSummary]) -> Worst | None:
    measured = [(m.attainment, name) for name, m in models.items() if m.attainment is not None]
    if not measured:
        return None
    attainment, name = min(measured)
    return Worst(name, attainment)


def _outcomes(counts: Ints) -> Outcomes:
    ended = (Outcome.IN_TIME, Outcome.LATE, Outcome.DROPPED, Outcome.FAILED)
    return Outcomes(*(int(counts[outcome]) for outcome in ended))


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _rate(count: int, span: float) -> float:
    return count / span if span > 0 else 0.0
