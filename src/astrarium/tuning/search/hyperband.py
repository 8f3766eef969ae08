"""Hyperband (Li et al., JMLR 2018) runs brackets one after another, with one group for each of their rungs.

With 27 iterations and eta 3, candidates x iterations in all are 27x1 9x3 3x9 1x27, 12x3 4x9 1x27, 6x9 2x27
and 4x27. A candidate that goes on begins with its checkpoint, so that a rung of 9 after one of 3 runs 6 more.

All candidates are drawn at the start: no result changes what is tried. So brackets need not wait for each
other, and several may be run at once: as many GPUs are then wanted at the end of one as at the start of the
next. That is ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec

from astrarium.tuning.policies import searches
from astrarium.tuning.search._brackets import BracketParameters, RunningBracket, brackets, budget_of
from astrarium.tuning.search.contract import Course, Pool, Want, WantedTrials, drawn
from astrarium.tuning.search.rungs import Count, successive_halving


@searches.register("hyperband")
class Hyperband:
    class Parameters(BracketParameters, frozen=True, forbid_unknown_fields=True):
        brackets_at_once: Annotated[Count, msgspec.Meta(description="brackets that are run at a time")] = 1

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters

    def budget(self) -> int:
        return budget_of(self.parameters)

    def run(self, pool: Pool) -> Course:
        chosen = self.parameters
        all_drawn = [(drawn(pool, count), rungs) for count, rungs in brackets(chosen)]
        courses = [successive_halving(pool, candidates, rungs, chosen.eta) for candidates, rungs in all_drawn]
        if chosen.brackets_at_once > 1:
            yield from _side_by_side(courses, chosen.brackets_at_once)
        else:
            for course in courses:
                yield from course


def _side_by_side(courses: list[Course], most: int) -> Course:
    """Run so many brackets at once; with the end of one, the next begins."""
    later = iter(courses)
    begun = list[RunningBracket]()
    while True:
        begun = [bracket for bracket in begun if bracket.missing]
        while len(begun) < most and (course := next(later, None)) is not None:
            bracket = RunningBracket(course)
            if bracket.missing:  # the sampler may have had no more
                begun.append(bracket)
        if not begun:
            return
        results = yield WantedTrials(tuple(_waiting_of(begun)), one_by_one=True)
        for bracket in begun:
            bracket.take_results(results)


def _waiting_of(begun: list[RunningBracket]) -> Iterator[Want]:
    for bracket in begun:
        yield from bracket.take_waiting()
