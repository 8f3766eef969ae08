"""Drafts are judged under what will really run, and mended where models fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice

import numpy as np

from astrarium.placement.policies import Search
from astrarium.placement.policies.planner.climb import wanting
from astrarium.placement.policies.planner.draft import (
    Draft,
    placed_models,
    without_model,
)
from astrarium.placement.policies.planner.moves import Moves
from astrarium.placement.policies.planner.quick_simulation import DraftResult, Floats, QuickSimulation

JUDGED_GAIN = 5e-4  # of all requests: a judge hears fewer of them than the search did
FINALISTS = 7
MENDED = 3  # models at a time
OVERLOADED = 0.9  # what is worth less may be worth more with a model less
# changes of each kind for each model; and how many of them all are judged
LOOKED_AT = 10
PROMISING = 8

Attained = Callable[[Draft], Sequence[float]]  # of each model


class DraftJudge:
    """A draft judge judges drafts on one sample, each once; *left* more may be judged."""

    def __init__(self, simulation: QuickSimulation, attained: Attained, left: int) -> None:
        self.simulation = simulation
        self._attained = attained
        self.left = left
        self._known: dict[Draft, DraftResult] = {}

    def __call__(self, draft: Draft) -> DraftResult:
        if draft not in self._known:
            self.left -= 1
            placed = placed_models(draft)
            pairs = enumerate(self._attained(draft))
            attained: Floats = np.array([part if place in placed else 0.0 for place, part in pairs])
            lost = self.simulation.weights * (1 - attained)
            self._known[draft] = DraftResult(
                attained, self.simulation(draft).work, float(1 - lost.sum()), lost
            )
        return self._known[draft]

    def worth(self, draft: Draft) -> float:
        return self(draft).worth


def judged_best(judge: DraftJudge, drafts: Iterable[Draft], search: Search) -> Draft:
    """Return the draft that is judged best; the first of equals."""
    best, *others = drafts
    for draft in others[:FINALISTS]:
        if (
            search.on
            and search.tried()
            and judge.left > 1
            and judge(draft).worth > judge(best).worth + JUDGED_GAIN
        ):
            best = draft
    return best


def mended(judge: DraftJudge, moves: Moves, draft: Draft, search: Search) -> Draft:
    """Make the first change that helps the neediest models, until none does or enough was judged."""
    better: Draft | None = draft
    while better is not None and search.on:
        draft = better
        better = _first_better(judge, moves, better, search)
    return draft


def _first_better(judge: DraftJudge, moves: Moves, draft: Draft, search: Search) -> Draft | None:
    result = judge(draft)
    for change in _changes(judge, moves, draft, result):
        if judge.left <= 0 or not search.tried():
            return None
        if judge(change).worth > result.worth + JUDGED_GAIN:
            return change
    return None


def _changes(judge: DraftJudge, moves: Moves, draft: Draft, result: DraftResult) -> Iterator[Draft]:
    """Yield changes worth judging: all of limits and shares, and the best few of replicas.

    What limits and shares do, the quick simulation hardly sees; replicas it can rank.
    """
    needy = wanting(result)[:MENDED]
    for model in needy:
        yield from chain(moves.batches(draft, model), moves.shares(draft, model))
    others = chain.from_iterable(_replicas(moves, draft, model, result) for model in needy)
    yield from sorted(others, key=lambda change: -judge.simulation(change).worth)[:PROMISING]
    if result.worth < OVERLOADED:
        # models that count least first: in queues that drop nobody, one model too many makes all late
        weights = judge.simulation.weights
        ranked = sorted(placed_models(draft), key=lambda model: (float(weights[model]), model))
        yield from (without_model(draft, model) for model in ranked)


def _replicas(moves: Moves, draft: Draft, model: int, result: DraftResult) -> Iterator[Draft]:
    ways = (moves.additions, moves.exchanges, moves.departures)
    return chain.from_iterable(islice(way(draft, model, result), LOOKED_AT) for way in ways)
