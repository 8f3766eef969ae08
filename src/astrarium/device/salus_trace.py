"""For Table 2.1, Salus ran 100 training jobs of Table A.1 on one GPU; this module draws such jobs."""

from __future__ import annotations

from itertools import accumulate

import msgspec

from astrarium.core.quantities import SECOND, Time
from astrarium.core.random_streams import stream
from astrarium.device.salus import SalusWorkload, workloads

MINUTE: Time = 60 * SECOND
LENGTHS = (MINUTE, 5 * MINUTE, 10 * MINUTE)
TAIL = 0.7
INTERVAL: Time = 30 * SECOND
EARLY = 0.75


class TraceJob(msgspec.Struct, frozen=True):
    arrival: Time
    workload: SalusWorkload
    iterations: int


def trace(
    jobs: int = 100, seed: int = 1, interval: Time = INTERVAL, tail: float = TAIL, early: float = EARLY
) -> list[TraceJob]:
    """Return jobs in order of arrival; the first arrives at once."""
    random = stream(seed, "salus", "jobs")
    kinds = workloads()
    chosen = [kinds[int(place)] for place in random.integers(0, len(kinds), jobs)]
    lengths = _drawn(lengths_of(jobs, tail), random.exponential(size=jobs).tolist(), early)
    gaps = random.exponential(interval, size=jobs).tolist()
    arrivals = accumulate([0, *(round(gap) for gap in gaps[1:])])
    return [
        TraceJob(at, workload, max(1, round(length / workload.iteration)))
        for at, workload, length in zip(arrivals, chosen, lengths, strict=True)
    ]


def lengths_of(jobs: int, tail: float) -> list[Time]:
    """Return as many jobs of each length as its share asks for, the shortest first."""
    weights = [(length / LENGTHS[0]) ** -tail for length in LENGTHS]
    ends = [round(jobs * end / sum(weights)) for end in accumulate(weights)]
    starts = [0, *ends[:-1]]
    counts = [end - start for start, end in zip(starts, ends, strict=True)]
    return [length for length, count in zip(LENGTHS, counts, strict=True) for _ in range(count)]


def _drawn(lengths: list[Time], races: list[float], early: float) -> list[Time]:
    """Draw lengths one by one, with chances in proportion to length^early, as in a race."""
    finishes = [race / length**early for race, length in zip(races, lengths, strict=True)]
    return [length for _, length in sorted(zip(finishes, lengths, strict=True))]
