"""Autoscaling advice says when a cluster should grow or shrink: the two signals of Symphony's section 3.5.

With a bad rate of r on N GPUs it asks for N r / (1 - r) more: what N GPUs serve well is a share 1 - r of
what is offered. With GPUs idle for a fraction f of the time it gives N f back. Deferred batching makes
both honest, because it fills batches before it fills GPUs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from astrarium.core.quantities import SECOND, Time
from astrarium.serving.ledger import Fate, Outcome
from astrarium.serving.record import Batches, Ints, ServingRecord

BAD_RATE_THRESHOLD = 0.01
Floats = npt.NDArray[np.float64]


class Advice(msgspec.Struct, frozen=True):
    """Advice is GPUs to add (round up) or to give back (round down); never both.

    `allocate` is infinite (null in JSON) when nothing at all was answered in time.
    """

    bad_rate: float
    idle_fraction: float
    allocate: float
    release: float


def advise(gpus: int, bad_rate: float, idle_fraction: float) -> Advice:
    if bad_rate <= BAD_RATE_THRESHOLD:
        return Advice(bad_rate, idle_fraction, 0.0, gpus * idle_fraction)
    allocate = gpus * bad_rate / (1 - bad_rate) if bad_rate < 1 else math.inf
    return Advice(bad_rate, idle_fraction, allocate, 0.0)


@dataclass(frozen=True)
class AdviceOverTime:
    """Advice over time has one row for each instant in `time`, about the window that ends there."""

    time: Ints
    bad_rate: Floats
    idle_fraction: Floats
    used: Ints  # GPUs that ran anything in the window
    allocate: Floats
    release: Floats


def advice_over_time(record: ServingRecord, window: Time, step: Time | None = None) -> AdviceOverTime:
    """Return what an autoscaler that looks back over *window* hears every *step* (one second by default).

    A request counts when it has ended, as it would for an autoscaler that cannot see the future.
    """
    step = step or SECOND
    ends = np.arange(step, record.duration + 1, step, dtype=np.int64)
    starts = np.maximum(ends - window, 0)
    bad_rate = _bad_rates(record, starts, ends)
    used, busy = _usage(record, starts, ends)
    gpus = len(record.setup.gpus)
    idle = np.clip(1 - busy / np.maximum((ends - starts) * gpus, 1), 0, 1)
    rows = [advise(gpus, bad, free) for bad, free in zip(bad_rate.tolist(), idle.tolist(), strict=True)]
    allocate = np.array([row.allocate for row in rows], dtype=np.float64)
    release = np.array([row.release for row in rows], dtype=np.float64)
    return AdviceOverTime(ends, bad_rate, idle, used, allocate, release)


def occupancy(batches: Batches, recovery: Time = 0) -> tuple[Ints, Ints]:
    """Return from when until when each batch kept its GPU from other work.

    After a preemption that includes the *recovery* time. The books know when a failed batch should have
    started, not when it did: it cannot have held the GPU before it was sent or before the batch ahead of
    it was gone.
    """
    started = np.maximum(batches.started, batches.dispatched)
    finished = batches.finished + recovery * (batches.fate == Fate.PREEMPTED)
    failed = np.flatnonzero(batches.fate == Fate.FAILED)
    if len(failed):
        started[failed] = np.maximum(started, _end_of_batch_ahead(batches.gpu, finished))[failed]
    running = batches.fate == Fate.RUNNING
    started[running] = finished[running] = 0  # never ended, so nothing is known of it
    return started, np.maximum(started, finished)


def busy_before(started: Ints, finished: Ints, times: Ints) -> Ints:
    """Return the work done before each of *times*, added over all intervals [started, finished)."""
    return _elapsed(started, times) - _elapsed(finished, times)


def _elapsed(moments: Ints, times: Ints) -> Ints:
    """Return for each time how long ago the moments before it were, added up."""
    ordered = np.sort(moments)
    sums = np.concatenate(([0], np.cumsum(ordered)))
    before = np.searchsorted(ordered, times)
    elapsed: Ints = times * before - sums[before]
    return elapsed


def _end_of_batch_ahead(gpu: Ints, finished: Ints) -> Ints:
    order = np.argsort(gpu, kind="stable")
    ahead = np.zeros_like(finished)
    same = gpu[order][1:] == gpu[order][:-1]
    ahead[order[1:]] = np.where(same, finished[order[:-1]], 0)
    return ahead


def _bad_rates(record: ServingRecord, starts: Ints, ends: Ints) -> Floats:
    requests = record.requests
    ended = _counts_between(requests.done, starts, ends)
    good = _counts_between(requests.done[requests.outcome == Outcome.IN_TIME], starts, ends)
    rates: Floats = 1 - good / np.maximum(ended, 1)
    return np.where(ended > 0, rates, 0.0)


def _counts_between(moments: Ints, starts: Ints, ends: Ints) -> Ints:
    ordered = np.sort(moments)
    counts: Ints = np.searchsorted(ordered, ends) - np.searchsorted(ordered, starts)
    return counts


def _usage(record: ServingRecord, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Return the GPUs that did anything in each window, and the work they did together."""
    used = np.zeros(len(ends), np.int64)
    busy = np.zeros(len(ends), np.int64)
    started, finished = occupancy(record.batches, record.setup.preemption_cost)
    for gpu in range(len(record.setup.gpus)):
        mine = record.batches.gpu == gpu
        work = busy_before(started[mine], finished[mine], ends)
        work -= busy_before(started[mine], finished[mine], starts)
        used += work > 0
        busy += work
    return used, busy
