"""Speeds say how fast each GPU of a scenario is: forms of models know the slowest kind only."""

from __future__ import annotations

from astrarium.placement.problem import PlacementGpu, Problem
from astrarium.serving.scenario import Scenario, build


class Speeds:
    def __init__(self, scenario: Scenario) -> None:
        setup = build.setup(scenario, placed=True)
        self._kinds, self._tables = build.truth_tables(scenario, setup)
        self._slowest = [model.latency for model in setup.models]

    @property
    def unequal(self) -> bool:
        return len(self._tables) > 1

    def part(self, gpu: int, model: int, size: int) -> float:
        """Return a batch's time on a GPU as a part of that on the slowest kind.

        Tables are of the longest requests. Short ones may run in larger batches, which count as the largest
        of these.
        """
        slowest = self._slowest[model]
        known = min(size, len(slowest) - 2)
        return self._tables[self._kinds[gpu]][model][known] / max(1, slowest[known])

    def work(self, problem: Problem, gpu: PlacementGpu) -> float:
        """Return the whole load's time on a GPU as a part of that on the slowest kind."""
        asked = [model for model in problem.models if model.rate > 0 and model.alone is not None]
        return sum(self.part(gpu.id, model.index, 1) for model in asked) / max(1, len(asked))
