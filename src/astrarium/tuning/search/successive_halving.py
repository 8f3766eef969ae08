"""Successive halving (Jamieson and Talwalkar, AISTATS 2016): one group for each rung."""

from __future__ import annotations

from typing import Annotated

import msgspec

from astrarium.tuning.policies import searches
from astrarium.tuning.search._rungs import Count, Eta, Iterations, halved, totals
from astrarium.tuning.search.contract import Course, Pool, drawn


@searches.register("successive-halving")
class SuccessiveHalving:
    class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        candidates: Annotated[Count, msgspec.Meta(description="on the first rung")] = 27
        iterations: Iterations = 27
        eta: Eta = 3
        smallest: Annotated[Count, msgspec.Meta(description="iterations on the first rung, at least")] = 1

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters

    def run(self, pool: Pool) -> Course:
        chosen = self.parameters
        rungs = totals(chosen.smallest, chosen.iterations, chosen.eta)
        return halved(pool, drawn(pool, chosen.candidates), rungs, chosen.eta)
