"""ASHA (Li et al., MLSys 2020) is successive halving without waiting: one group stays open all the time.

Whenever a trial ends, a candidate of the highest rung possible goes on: one that is among the best 1/eta of
its rung so far. Where there is none, a new candidate joins.

One rule is ours: no rung ever lets more than 1/eta of its results go on. The original counts only those that
are still among the best, and lets more go on where early ones were overtaken.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from astrarium.tuning.policies import searches
from astrarium.tuning.search.contract import Course, Pool, Want, WantedTrials
from astrarium.tuning.search.rungs import (
    Concurrency,
    Count,
    Eta,
    Iterations,
    concurrent_trials,
    iterations_of,
    totals,
)


@searches.register("asha")
class Asha:
    class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        candidates: Annotated[Count, msgspec.Meta(description="configurations to try")] = 81
        iterations: Iterations = 27
        eta: Eta = 3
        smallest: Annotated[Count, msgspec.Meta(description="iterations on the first rung, at least")] = 1
        concurrency: Concurrency = 8

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters

    def budget(self) -> int:
        chosen = self.parameters
        rungs = totals(chosen.smallest, chosen.iterations, chosen.eta)
        return iterations_of(chosen.candidates, rungs, chosen.eta)

    def run(self, pool: Pool) -> Course:
        open_rungs = _Rungs(pool, self.parameters)
        while True:
            trials = open_rungs.more()
            if not open_rungs.at:
                return
            for candidate, value in (yield WantedTrials(trials, one_by_one=True)).items():
                open_rungs.take_result(candidate, value)


class _Rungs:
    def __init__(self, pool: Pool, parameters: Asha.Parameters) -> None:
        self._pool = pool
        self._parameters = parameters
        self._group = pool.group()
        self._totals = totals(parameters.smallest, parameters.iterations, parameters.eta)
        self._results: list[dict[int, float | None]] = [{} for _ in self._totals]
        self._gone_on: list[set[int]] = [set() for _ in self._totals]
        self._left = parameters.candidates  # that have not been drawn
        self.at: dict[int, int] = {}  # the rung of each candidate that trains

    def take_result(self, candidate: int, value: float | None) -> None:
        rung = self.at.pop(candidate)
        self._results[rung][candidate] = value
        if rung == len(self._totals) - 1 and value is not None:
            self._pool.complete([candidate])

    def more(self) -> tuple[Want, ...]:
        wants = list[Want]()
        most = concurrent_trials(self._pool, self._parameters.concurrency)
        while len(self.at) < most and (want := self._one()) is not None:
            wants.append(want)
        return tuple(wants)

    def _one(self) -> Want | None:
        for rung in range(len(self._totals) - 2, -1, -1):
            candidate = self._promising(rung)
            if candidate is not None:
                self._gone_on[rung].add(candidate)
                return self._want(candidate, rung + 1)
        fresh = self._pool.new() if self._left else None
        self._left = self._left - 1 if fresh is not None else 0
        return None if fresh is None else self._want(fresh, 0)

    def _promising(self, rung: int) -> int | None:
        results = self._results[rung]
        gone = self._gone_on[rung]
        share = len(results) // self._parameters.eta
        if len(gone) >= share:
            return None
        best = self._pool.ranked(results)[:share]
        return next((candidate for candidate in best if candidate not in gone), None)

    def _want(self, candidate: int, rung: int) -> Want:
        self.at[candidate] = rung
        return Want(candidate, self._group, self._totals[rung])
