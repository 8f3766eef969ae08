"""Brackets of Hyperband (Li et al., JMLR 2018): many candidates for a short time, few for long."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, NamedTuple

import msgspec

from astrarium.tuning.search.contract import Course, Results, Want, WantedTrials
from astrarium.tuning.search.rungs import Count, Eta, Iterations, iterations_of, totals


class RunningBracket:
    """A bracket that runs beside others: *missing* are the candidates whose results its rung waits for, and
    *waiting* those of its trials that the session was not asked for yet."""

    def __init__(self, course: Course) -> None:
        self._course = course
        self.waiting: list[Want] = []
        self.missing: set[int] = set()
        self._next(next(course))

    @property
    def running(self) -> int:
        return len(self.missing) - len(self.waiting)

    def take_waiting(self) -> list[Want]:
        """Return all trials of the rung that the session was not asked for yet, and no longer keep them."""
        wants = self.waiting
        self.waiting = []
        return wants

    def take_results(self, results: Results) -> None:
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


class BracketParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    iterations: Iterations = 27
    eta: Eta = 3
    passes: Annotated[Count, msgspec.Meta(description="times that all brackets are run")] = 1


class Bracket(NamedTuple):
    candidates: int
    rungs: list[int]  # totals, in iterations


def budget_of(chosen: BracketParameters) -> int:
    """Return the iterations of all brackets together."""
    return sum(iterations_of(count, rungs, chosen.eta) for count, rungs in brackets(chosen))


def brackets(chosen: BracketParameters) -> list[Bracket]:
    """Return the brackets of all passes, in each pass the one with most candidates first."""
    eta = chosen.eta
    rungs = totals(1, chosen.iterations, chosen.eta)
    most = len(rungs) - 1
    one_pass = [Bracket(-(-(most + 1) * eta**s // (s + 1)), rungs[most - s :]) for s in range(most, -1, -1)]
    return one_pass * chosen.passes
