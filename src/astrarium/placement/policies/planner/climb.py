"""A climb improves a draft by additions and single changes.

A change counts only if it helps on all samples together. One sample tells most bad changes from good ones,
so that the others are simulated for those that pass it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from astrarium.placement.policies import Search
from astrarium.placement.policies.planner.draft import (
    Draft,
)
from astrarium.placement.policies.planner.moves import Moves
from astrarium.placement.policies.planner.quick_simulation import DraftResult, QuickSimulation

GAIN = 5e-5  # of all requests: what is less is luck
CHOICES = 3  # sites tried for an addition
WIDE = 24  # changes tried for each model before the next one has its turn


class Climb:
    """A climb improves a draft change by change; *budget* requests may be simulated for it."""

    def __init__(self, simulation: QuickSimulation, moves: Moves, search: Search, budget: float) -> None:
        self.simulation = simulation
        self.moves = moves
        self.search = search
        self._end = simulation.cost + budget

    @property
    def on(self) -> bool:
        return self.search.on and self.simulation.cost < self._end

    def grown(self, draft: Draft) -> Draft:
        """Add replicas where most is lost, as long as that helps."""
        while self.on:
            result = self.simulation(draft)
            better = next(self._helpful_additions(draft, result), None)
            if better is None:
                return draft
            draft = better
        return draft

    def _helpful_additions(self, draft: Draft, result: DraftResult) -> Iterator[Draft]:
        for model in wanting(result):
            tried = islice(self.moves.additions(draft, model, result), CHOICES)
            ranked = [
                (self.tried(addition).worth, -number, addition) for number, addition in enumerate(tried)
            ]
            if ranked and max(ranked)[0] > result.worth + GAIN:
                yield max(ranked)[2]

    def tried(self, draft: Draft, sample: int = 0) -> DraftResult:
        self.search.tried()
        return self.simulation(draft, sample)

    def climbed(self, draft: Draft) -> Draft:
        """Make the first change that helps, until none does.

        The neediest models come first; the samples take turns at telling which they are.
        """
        worth = self.simulation.worth(draft)
        wide = WIDE
        sample = 0
        while self.on:
            better = next(self._better(draft, worth, wide, sample), None)
            if better is not None:
                draft, worth = better
                sample = (sample + 1) % self.simulation.samples
            elif wide > WIDE:
                break
            else:
                wide *= 20
        return draft

    def _better(self, draft: Draft, worth: float, wide: int, sample: int) -> Iterator[tuple[Draft, float]]:
        result = self.simulation(draft, sample)
        for change in self._changes(draft, result, wide):
            if not self.on:
                return
            if self.tried(change, sample).worth > result.worth:
                full_worth = self.simulation.worth(change)
                if full_worth > worth + GAIN:
                    yield change, full_worth

    def _changes(self, draft: Draft, result: DraftResult, wide: int) -> Iterator[Draft]:
        for model in wanting(result):
            yield from islice(self.moves.all_for(draft, model, result), wide)
        yield from self.moves.reshaped(draft, wanting(result))


def wanting(result: DraftResult) -> list[int]:
    """Return the models that lose something, those that lose most first."""
    order = np.argsort(-result.lost, kind="stable").tolist()
    return [model for model in order if result.lost[model] > 0]
