"""Hyperband (Li et al., JMLR 2018): brackets one after another, one group for each of their rungs.

With 27 iterations and eta 3, candidates x iterations in all are 27x1 9x3 3x9 1x27, 12x3 4x9 1x27, 6x9 2x27
and 4x27.
Who goes on begins with its checkpoint, so that a rung of 9 after one of 3 runs 6 more.

All candidates are drawn at the start: no result changes what is tried.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from astrarium.tuning.registry import searches
from astrarium.tuning.search._brackets import brackets
from astrarium.tuning.search._rungs import Count, Eta, Iterations, halved
from astrarium.tuning.searching import Course, Pool, drawn


@searches.register("hyperband")
class Hyperband:
    class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        iterations: Iterations = 27
        eta: Eta = 3
        passes: Annotated[Count, msgspec.Meta(description="times that all brackets are run")] = 1

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters

    def run(self, pool: Pool) -> Course:
        chosen = self.parameters
        plan = brackets(chosen.iterations, chosen.eta) * chosen.passes
        for candidates, rungs in [(drawn(pool, count), rungs) for count, rungs in plan]:
            yield from halved(pool, candidates, rungs, chosen.eta)
