"""Rungs let candidates train for a while, and the best of them for longer."""

from __future__ import annotations

from typing import Annotated

import msgspec

from astrarium.tuning.search.contract import Course, Pool, WantedTrials, wants

Count = Annotated[int, msgspec.Meta(ge=1)]
Eta = Annotated[int, msgspec.Meta(ge=2, description="one in so many goes on, for so many times as long")]
Iterations = Annotated[int, msgspec.Meta(ge=1, description="most that a candidate trains for")]
Concurrency = Annotated[
    int, msgspec.Meta(ge=0, description="trials at a time; 0: as many as there are GPUs, one on each")
]


def concurrent_trials(pool: Pool, concurrency: int) -> int:
    """Return how many trials run at a time; 0 means one on each GPU: asynchronous searches ask for a new
    trial whenever a worker is idle."""
    return concurrency or pool.workers


def totals(smallest: int, largest: int, eta: int) -> list[int]:
    """Return the iterations of each rung, counted from a candidate's start; the last has *largest*."""
    sizes = [largest]
    while sizes[0] // eta >= smallest:
        sizes.insert(0, sizes[0] // eta)
    return sizes


def iterations_of(candidates: int, rungs: list[int], eta: int) -> int:
    """Return what candidates train for in all, if the best of each rung go on."""
    done = 0
    iterations = 0
    for total in rungs:
        iterations += candidates * (total - done)
        done = total
        candidates = max(1, candidates // eta)
    return iterations


def successive_halving(pool: Pool, candidates: list[int], rungs: list[int], eta: int) -> Course:
    """Run successive halving, with one group for each rung. At least one candidate goes on, if any has a
    value."""
    for rung, total in enumerate(rungs):
        best = pool.ranked((yield wanted(pool, candidates, total)))
        if rung == len(rungs) - 1:
            pool.complete(best)
            return
        kept = max(1, len(candidates) // eta)
        pool.stop(best[kept:])
        candidates = best[:kept]


def wanted(pool: Pool, candidates: list[int], total: int) -> WantedTrials:
    return WantedTrials(wants(pool.group(), candidates, total))
