"""Rungs let candidates train for a while, and the best of them for longer."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, NamedTuple

import msgspec

from astrarium.tuning.search.contract import Course, Pool, Results, Want, WantedTrials, wants


class RunningBracket:
    """A bracket that runs beside others knows which results its rung still waits for, and which of its trials
    nobody was asked for yet."""

    def __init__(self, course: Course) -> None:
        self._course = course
        self.waiting: list[Want] = []
        self.missing: set[int] = set()
        self._next(next(course))

    @property
    def running(self) -> int:
        return len(self.missing) - len(self.waiting)

    def asked(self) -> list[Want]:
        """Return all trials of the rung that nobody was asked for yet."""
        wants = self.waiting
        self.waiting = []
        return wants

    def heard(self, results: Results) -> None:
        """Take the results of this bracket's trials; with the last of a rung, the next one begins."""
        mine = {candidate: value for candidate, value in results.items() if candidate in self.missing}
        self._results |= mine
        self.missing -= mine.keys()
        if mine and not self.missing:
            with suppress(StopIteration):
                self._next(self._course.send(self._results))

    def _next(self, wanted: WantedTrials) -> None:
        self.waiting = list(wanted.trials)
        self.missing = {want.candidate for want in wanted.trials}
        self._results: dict[int, float | None] = {}


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


# Hyperband (Li et al., JMLR 2018) has brackets: many candidates for a short time, few for long.


class BracketParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    iterations: Iterations = 27
    eta: Eta = 3
    passes: Annotated[Count, msgspec.Meta(description="times that all brackets are run")] = 1


class Bracket(NamedTuple):
    candidates: int
    rungs: list[int]  # totals, in iterations


def brackets(chosen: BracketParameters) -> list[Bracket]:
    """Return the brackets of all passes, in each pass the one with most candidates first."""
    eta = chosen.eta
    rungs = totals(1, chosen.iterations, chosen.eta)
    most = len(rungs) - 1
    made = [Bracket(-(-(most + 1) * eta**s // (s + 1)), rungs[most - s :]) for s in range(most, -1, -1)]
    return made * chosen.passes
