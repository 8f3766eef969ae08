"""Successive halving (Jamieson and Talwalkar, AISTATS 2016) has a group of trials for each rung (`rungs`)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from astrarium.tuning.policies import searches
from astrarium.tuning.search.contract import Course, Pool, drawn
from astrarium.tuning.search.rungs import Count, Eta, Iterations, iterations_of, successive_halving, totals


@searches.register("successive-halving")
class SuccessiveHalving:
    class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        candidates: Annotated[Count, msgspec.Meta(description="on the first rung")] = 27
        iterations: Iterations = 27
        eta: Eta = 3
        smallest: Annotated[Count, msgspec.Meta(description="iterations on the first rung, at least")] = 1

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters

    def budget(self) -> int:
        chosen = self.parameters
        rungs = totals(chosen.smallest, chosen.iterations, chosen.eta)
        return iterations_of(chosen.candidates, rungs, chosen.eta)

    def run(self, pool: Pool) -> Course:
        chosen = self.parameters
        rungs = totals(chosen.smallest, chosen.iterations, chosen.eta)
        return successive_halving(pool, drawn(pool, chosen.candidates), rungs, chosen.eta)
