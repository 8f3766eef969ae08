"""What else the FIFO row of Table 2.1 may mean: other traces of which FIFO makes the same.

That row asks for much work at the beginning. Our trace has long jobs early; as well, lengths may be very
unequal and the order random, so that a few giants happen to come early. Here lengths are lognormal, and of
the traces that are drawn those are kept of which FIFO makes the printed row.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice

from astrarium.core.quantities import Time
from astrarium.core.random_streams import stream
from astrarium.device.policies.turns import OneLane, Srtf
from astrarium.device.salus_trace import TraceJob, trace
from astrarium_papers.salus._settings import MINUTE

SPREADS = (1.2, 1.6, 2.3)  # sigma of the lognormal
MAKESPAN = 303.4 * MINUTE
QUEUEING = 167.6 * MINUTE
CLOSE = 0.03


class EagerSrtf(Srtf):
    """A policy that admits whatever job fits, in order of what is left, as the authors' code does; jobs then
    pause inside."""

    _let_in = OneLane._let_in


def unequal(spread: float, traces: int) -> list[list[TraceJob]]:
    """Return the first so many traces that fit, by their seeds."""
    return list(islice(_fitting(spread), traces))


def _fitting(spread: float) -> Iterator[list[TraceJob]]:
    for seed in count(1):
        lengths = _lengths(spread, seed)
        jobs = trace(len(lengths), seed, early=0.0)
        makespan, queueing = _fifo([job.arrival for job in jobs], lengths)
        if abs(queueing / QUEUEING - 1) < CLOSE and abs(makespan / MAKESPAN - 1) < CLOSE:
            yield [_of_length(job, length) for job, length in zip(jobs, lengths, strict=True)]


def _lengths(spread: float, seed: int, jobs: int = 100) -> list[float]:
    """Return lengths scaled so that together they last as long as the printed makespan."""
    drawn = stream(seed, "salus", "unequal", str(spread)).lognormal(0.0, spread, jobs)
    return [float(length) for length in drawn * (MAKESPAN / drawn.sum())]


def _of_length(job: TraceJob, length: float) -> TraceJob:
    return TraceJob(job.arrival, job.workload, max(1, round(length / job.workload.iteration)))


def _fifo(arrivals: list[Time], lengths: list[float]) -> tuple[float, float]:
    """Return the makespan and the mean queueing under FIFO."""
    free = waited = 0.0
    for arrival, length in zip(arrivals, lengths, strict=True):
        start = max(free, arrival)
        waited = waited + start - arrival
        free = start + length
    return free, waited / len(lengths)
