"""Training jobs as Salus ran them for Table 2.1: 100 of Table A.1 on one GPU.

Of the trace, the dissertation prints only what FIFO makes of it, and that the distribution of jobs followed
one of a production cluster; the authors' public repository lists each workload in lengths of 1, 5 and 10
minutes. So a trace here is drawn like this:

- `jobs` workloads of Table A.1, each as likely as another;
- lengths of 1, 5 and 10 minutes, in shares that fall with a power (`tail`) of the length;
- arrivals one after another, `interval` apart on average, exponentially distributed;
- the order: at each turn, a job is drawn with a chance that grows with a power (`early`) of its length.

The three free numbers are set by the FIFO row of Table 2.1 alone. The mean time of a job in service (170.6 -
167.6 = 3.0 minutes) sets `tail`. The last jobs wait for all the work but what was done before they came, so
that 303.4 - 251.1 minutes set `interval`. In a random order the mean queueing would then be about 125
minutes; they printed 167.6, which only a trace with much of its work at the beginning can give: that sets
`early`. (Very unequal lengths in a random order can give that row too: see reproduce/salus/_readings.py.)
"""

from __future__ import annotations

from itertools import accumulate

import msgspec

from astrarium.core.streams import stream
from astrarium.core.units import SECOND, Time
from astrarium.workloads.salus import Workload, workloads

MINUTE: Time = 60 * SECOND
LENGTHS = (MINUTE, 5 * MINUTE, 10 * MINUTE)
TAIL = 0.7
INTERVAL: Time = 30 * SECOND
EARLY = 0.75


class TraceJob(msgspec.Struct, frozen=True):
    arrival: Time
    workload: Workload
    iterations: int


def trace(
    jobs: int = 100,
    seed: int = 1,
    interval: Time = INTERVAL,
    tail: float = TAIL,
    early: float = EARLY,
) -> list[TraceJob]:
    """In order of arrival; the first comes at once."""
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
    """As many jobs of each length as its share asks for, the shortest first."""
    weights = [(length / LENGTHS[0]) ** -tail for length in LENGTHS]
    ends = [round(jobs * end / sum(weights)) for end in accumulate(weights)]
    starts = [0, *ends[:-1]]
    counts = [end - start for start, end in zip(starts, ends, strict=True)]
    return [length for length, count in zip(LENGTHS, counts, strict=True) for _ in range(count)]


def _drawn(lengths: list[Time], races: list[float], early: float) -> list[Time]:
    """Drawn one by one, with chances in proportion to length^early: they run a race at these speeds."""
    finishes = [race / length**early for race, length in zip(races, lengths, strict=True)]
    return [length for _, length in sorted(zip(finishes, lengths, strict=True))]
