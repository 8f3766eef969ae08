"""Population Based Training (Jaderberg et al., 2017) has one group for each interval.

After an interval the worst candidates are replaced by copies of the best: their checkpoints, and their values
slightly changed. A copy is a candidate of its own, so that no candidate's values ever change.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from astrarium.core.random_streams import stream
from astrarium.tuning.policies import searches
from astrarium.tuning.search.contract import Course, Pool, drawn
from astrarium.tuning.search.rungs import Count, Iterations, wanted


@searches.register("pbt")
class Pbt:
    class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        population: Count = 8
        iterations: Iterations = 27
        interval: Annotated[Count, msgspec.Meta(description="iterations between changes")] = 3
        replaced: Annotated[float, msgspec.Meta(gt=0, le=0.5, description="part that is replaced")] = 0.25
        seed: int = 0

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters

    def budget(self) -> int:
        return self.parameters.population * self.parameters.iterations

    def run(self, pool: Pool) -> Course:
        chosen = self.parameters
        members = drawn(pool, chosen.population)
        size = chosen.population
        ends = range(chosen.interval, chosen.iterations, chosen.interval)
        for total in [*ends, chosen.iterations]:
            best = pool.ranked((yield wanted(pool, members, total)))
            size = min(size, len(members))
            if total == chosen.iterations:
                pool.complete(best)
            else:
                members = self._exploited(pool, best, size, total)

    def _exploited(self, pool: Pool, best: list[int], size: int, round_: int) -> list[int]:
        """Return the next population, in which failed candidates are replaced too, unless all failed."""
        count = int(size * self.parameters.replaced)
        kept = best[: size - count]
        pool.stop(best[len(kept) :])
        models = best[: max(1, count)]
        chance = stream(self.parameters.seed, "pbt", round_)
        picked = [models[int(chance.integers(len(models)))] for _ in range(size - len(kept)) if models]
        return kept + [pool.copy(model, self.parameters.seed) for model in picked]
