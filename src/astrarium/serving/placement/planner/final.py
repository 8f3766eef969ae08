"""The last steps: drafts are judged under what will really run, mended where models fail, and confirmed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice

import numpy as np

from astrarium.serving.placement.planner.draft import Draft, placed_models, without_model
from astrarium.serving.placement.planner.glance import Floats, Glance, Seen
from astrarium.serving.placement.planner.moves import Moves
from astrarium.serving.placement.planner.search import wanting
from astrarium.serving.placement.policies._ground import Going

GAIN = 5e-4  # of all requests: a judge hears fewer of them than the search did
FINALISTS = 7
MENDED = 3  # models at a time
OVERLOADED = 0.9  # what is worth less may be worth more with a model less
LOOKED_AT, PROMISING = 10, 8  # changes of each kind for each model; and how many of them all are judged


Attained = Callable[[Draft], Sequence[float]]  # of each model


class Bench:
    """Judges drafts on one sample. *left*: so many may still be judged; the same draft counts once."""

    def __init__(self, glance: Glance, attained: Attained, left: int) -> None:
        self.glance, self._attained, self.left = glance, attained, left
        self._known: dict[Draft, Seen] = {}

    def __call__(self, draft: Draft) -> Seen:
        if draft not in self._known:
            self.left -= 1
            placed = placed_models(draft)
            pairs = enumerate(self._attained(draft))
            attained: Floats = np.array([each if place in placed else 0.0 for place, each in pairs])
            lost = self.glance.weights * (1 - attained)
            self._known[draft] = Seen(attained, self.glance(draft).work, float(1 - lost.sum()), lost)
        return self._known[draft]

    def worth(self, draft: Draft) -> float:
        return self(draft).worth


def judged_best(bench: Bench, drafts: Iterable[Draft], going: Going) -> Draft:
    """Of equals the first."""
    best, *others = drafts
    for draft in others[:FINALISTS]:
        if going.on and going.tried() and bench.left > 1 and bench(draft).worth > bench(best).worth + GAIN:
            best = draft
    return best


def mended(bench: Bench, moves: Moves, draft: Draft, going: Going) -> Draft:
    """The first change that helps the neediest models is made, until none does or enough was judged."""
    better: Draft | None = draft
    while better is not None and going.on:
        draft, better = better, _first_better(bench, moves, better, going)
    return draft


def _first_better(bench: Bench, moves: Moves, draft: Draft, going: Going) -> Draft | None:
    seen = bench(draft)
    for change in _changes(bench, moves, draft, seen):
        if bench.left <= 0 or not going.tried():
            return None
        if bench(change).worth > seen.worth + GAIN:
            return change
    return None


def _changes(bench: Bench, moves: Moves, draft: Draft, seen: Seen) -> Iterator[Draft]:
    """Limits and shares as they come: what they do, the quick simulation hardly sees. Of replicas those that
    it thinks best."""
    needy = wanting(seen)[:MENDED]
    for model in needy:
        yield from chain(moves.batches(draft, model), moves.shares(draft, model))
    others = chain.from_iterable(_replicas(moves, draft, model, seen) for model in needy)
    yield from sorted(others, key=lambda change: -bench.glance(change).worth)[:PROMISING]
    if seen.worth < OVERLOADED:
        yield from (without_model(draft, model) for model in sorted(placed_models(draft), key=_least(bench)))


def _least(bench: Bench) -> Callable[[int], tuple[float, int]]:
    """Who counts least goes first: in queues that drop nobody, one model too many makes all of them late."""
    return lambda model: (float(bench.glance.weights[model]), model)


def _replicas(moves: Moves, draft: Draft, model: int, seen: Seen) -> Iterator[Draft]:
    ways = (moves.additions, moves.exchanges, moves.departures)
    return chain.from_iterable(islice(way(draft, model, seen), LOOKED_AT) for way in ways)
