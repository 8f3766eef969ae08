"""Rungs: candidates train for a while, the best of them go on for longer."""

from __future__ import annotations

from typing import Annotated

import msgspec

from astrarium.tuning.searching import Course, Pool, Wanted, wants

Count = Annotated[int, msgspec.Meta(ge=1)]
Eta = Annotated[int, msgspec.Meta(ge=2, description="one in so many goes on, for so many times as long")]
Iterations = Annotated[int, msgspec.Meta(ge=1, description="most that a candidate trains for")]
Concurrency = Annotated[
    int, msgspec.Meta(ge=0, description="trials at a time; 0: as many as there are GPUs, one on each")
]


def at_a_time(pool: Pool, concurrency: int) -> int:
    """0 is what asynchronous searches do by themselves: a new trial whenever a worker is idle."""
    return concurrency or pool.workers


def totals(smallest: int, largest: int, eta: int) -> list[int]:
    """What candidates of each rung have trained for in all. The last has *largest*."""
    found = [largest]
    while found[0] // eta >= smallest:
        found.insert(0, found[0] // eta)
    return found


def halved(pool: Pool, candidates: list[int], rungs: list[int], eta: int) -> Course:
    """Successive halving: one group for each rung. One candidate at least goes on, if any has a value."""
    for rung, total in enumerate(rungs):
        best = pool.ranked((yield wanted(pool, candidates, total)))
        if rung == len(rungs) - 1:
            pool.complete(best)
            return
        kept = max(1, len(candidates) // eta)
        pool.stop(best[kept:])
        candidates = best[:kept]


def wanted(pool: Pool, candidates: list[int], total: int) -> Wanted:
    return Wanted(wants(pool.group(), candidates, total))
