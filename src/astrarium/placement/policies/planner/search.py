"""Drafts from nothing, and better ones from those: additions where most is lost, then single changes.

A change counts only if it helps on all samples together. One sample tells most bad changes from good ones,
so that the others are simulated for those that pass it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from astrarium.placement.policies._ground import Going
from astrarium.placement.policies.planner.draft import Draft
from astrarium.placement.policies.planner.glance import Glance, Seen
from astrarium.placement.policies.planner.moves import Moves

GAIN = 5e-5  # of all requests: what is less is luck
CHOICES = 3  # sites tried for an addition
WIDE = 24  # changes tried for each model before the next one has its turn


class Climb:
    """*budget*: so many requests may be simulated."""

    def __init__(self, glance: Glance, moves: Moves, going: Going, budget: float) -> None:
        self.glance, self.moves, self.going = glance, moves, going
        self._end = glance.cost + budget

    @property
    def on(self) -> bool:
        return self.going.on and self.glance.cost < self._end

    def grown(self, draft: Draft) -> Draft:
        """Replicas are added where most is lost, as long as that helps."""
        while self.on:
            seen = self.glance(draft)
            better = next(self._helpful_additions(draft, seen), None)
            if better is None:
                return draft
            draft = better
        return draft

    def _helpful_additions(self, draft: Draft, seen: Seen) -> Iterator[Draft]:
        for model in wanting(seen):
            tried = islice(self.moves.additions(draft, model, seen), CHOICES)
            ranked = [(self.tried(each).worth, -number, each) for number, each in enumerate(tried)]
            if ranked and max(ranked)[0] > seen.worth + GAIN:
                yield max(ranked)[2]

    def tried(self, draft: Draft, sample: int = 0) -> Seen:
        self.going.tried()
        return self.glance(draft, sample)

    def climbed(self, draft: Draft) -> Draft:
        """The first change that helps is made, until none does. The neediest models come first; the samples
        take turns at telling which they are."""
        worth, wide, sample = self.glance.worth(draft), WIDE, 0
        while self.on:
            better = next(self._better(draft, worth, wide, sample), None)
            if better is not None:
                draft, worth = better
                sample = (sample + 1) % self.glance.samples
            elif wide > WIDE:
                break
            else:
                wide *= 20
        return draft

    def _better(self, draft: Draft, worth: float, wide: int, sample: int) -> Iterator[tuple[Draft, float]]:
        seen = self.glance(draft, sample)
        for change in self._changes(draft, seen, wide):
            if not self.on:
                return
            if self.tried(change, sample).worth > seen.worth:
                found = self.glance.worth(change)
                if found > worth + GAIN:
                    yield change, found

    def _changes(self, draft: Draft, seen: Seen, wide: int) -> Iterator[Draft]:
        for model in wanting(seen):
            yield from islice(self.moves.all_for(draft, model, seen), wide)
        yield from self.moves.reshaped(draft, wanting(seen))


def wanting(seen: Seen) -> list[int]:
    """Models that lose something, those that lose most first."""
    order = np.argsort(-seen.lost, kind="stable").tolist()
    return [model for model in order if seen.lost[model] > 0]
