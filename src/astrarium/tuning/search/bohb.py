"""BOHB (Falkner et al., ICML 2018) overlaps the brackets of Hyperband, so that no worker waits for a rung.

A rung waits for all of its own trials. While it does, and fewer trials run than there are workers, the next
bracket begins, with candidates of a sampler that has heard of all that has ended. Earlier brackets come
first.
"""

from __future__ import annotations

from collections.abc import Iterator

from astrarium.tuning.policies import searches
from astrarium.tuning.search._brackets import BracketParameters, RunningBracket, brackets, budget_of
from astrarium.tuning.search.contract import Course, Pool, Want, WantedTrials, drawn
from astrarium.tuning.search.rungs import Concurrency, concurrent_trials, successive_halving


@searches.register("sync-bohb")
class SyncBohb:
    """Synchronous BOHB has the rungs of Hyperband, and a sampler that learns between them."""

    Parameters = BracketParameters

    def __init__(self, parameters: BracketParameters) -> None:
        self.parameters = parameters

    def budget(self) -> int:
        return budget_of(self.parameters)

    def run(self, pool: Pool) -> Course:
        for course in _courses(pool, self.parameters):
            yield from course


@searches.register("bohb")
class Bohb:
    class Parameters(BracketParameters, frozen=True, forbid_unknown_fields=True):
        concurrency: Concurrency = 8

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters

    def budget(self) -> int:
        return budget_of(self.parameters)

    def run(self, pool: Pool) -> Course:
        begun: list[RunningBracket] = []
        later = _courses(pool, self.parameters)
        while True:
            wanted = tuple(self._more(begun, later, concurrent_trials(pool, self.parameters.concurrency)))
            begun = [bracket for bracket in begun if bracket.missing]
            if not begun:
                return
            results = yield WantedTrials(wanted, one_by_one=True)
            for bracket in begun:
                bracket.take_results(results)

    def _more(self, begun: list[RunningBracket], later: Iterator[Course], most: int) -> Iterator[Want]:
        """Yield trials of the earliest bracket that has any; where none has, the next bracket begins."""
        while sum(bracket.running for bracket in begun) < most:
            ready = next((bracket for bracket in begun if bracket.waiting), None)
            if ready is not None:
                yield ready.waiting.pop(0)
            elif (course := next(later, None)) is not None:
                begun.append(RunningBracket(course))
            else:
                return


def _courses(pool: Pool, chosen: BracketParameters) -> Iterator[Course]:
    """Yield the courses of all brackets; the candidates of each are drawn when it begins."""
    for count, rungs in brackets(chosen):
        yield successive_halving(pool, drawn(pool, count), rungs, chosen.eta)
