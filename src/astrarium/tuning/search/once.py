"""Grid and random search have one group, and train every candidate for the same number of iterations."""

from __future__ import annotations

from math import inf
from typing import Annotated

import msgspec

from astrarium.tuning.policies import searches
from astrarium.tuning.search.contract import Course, Pool, drawn
from astrarium.tuning.search.rungs import Count, Iterations, successive_halving


@searches.register("grid")
class Grid:
    """Grid search trains every configuration that the sampler has."""

    class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        iterations: Iterations = 27

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters

    def run(self, pool: Pool) -> Course:
        return successive_halving(pool, drawn(pool, inf), [self.parameters.iterations], eta=2)


@searches.register("random")
class Random:
    """Random search trains so many configurations of the sampler."""

    class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        candidates: Annotated[Count, msgspec.Meta(description="configurations to try")] = 27
        iterations: Iterations = 27

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters

    def budget(self) -> int:
        return self.parameters.candidates * self.parameters.iterations

    def run(self, pool: Pool) -> Course:
        return successive_halving(
            pool, drawn(pool, self.parameters.candidates), [self.parameters.iterations], eta=2
        )
