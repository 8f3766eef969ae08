"""What being apart costs, learnt from jobs whose length nobody knows.

How far a job is, it tells in parts of its work; how much work that is, only its owner guesses. But the same
job on as many GPUs in two places has two rates, and their ratio is owed to the places alone. Runs with other
numbers of GPUs are not compared: what more GPUs cost is another thing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

from astrarium.cluster.machines import Spread
from astrarium.cluster.slowdowns import JobProgress, Slowdowns
from astrarium.core.quantities import Time

ENOUGH = 8  # reports of progress that make the rate of a run
Place = tuple[str, Spread]  # the network, and how far apart


@dataclass
class RunRate:
    """The rate of one run, from its first progress on: what was before is startup."""

    since: Time = 0
    done: Time = 0
    reports: int = -1  # after the first progress
    cost: float = 0.0  # GPU time for a unit of work

    def hear(self, progress: JobProgress) -> None:
        if progress.done < self.done or self.reports < 0:
            self.since = progress.now
            self.done = progress.done
            self.reports = 0 if progress.came > 0 else -1
        elif progress.came > 0:
            self.reports += 1
            self.cost = progress.gpus * (progress.now - self.since) / (progress.done - self.done)


@dataclass
class RelativeSlowdowns(Slowdowns):
    """Slowdowns that are learnt from the rates of each job's own runs: the median over runs of a job in a
    place, over its tightest place, and then over jobs of the same model."""

    _runs: dict[tuple[int, int, int], dict[Place, dict[int, RunRate]]] = field(default_factory=dict)
    _seen: dict[tuple[str, Place], dict[tuple[int, int, int], float]] = field(default_factory=dict)

    def hear(self, progress: JobProgress) -> None:
        if progress.ended or progress.gpus < 2:
            return
        job = (progress.app, progress.job, progress.gpus)
        place = (progress.network, progress.spread)
        run = self._runs.setdefault(job, {}).setdefault(place, {}).setdefault(progress.run, RunRate())
        run.hear(progress)
        if run.reports >= ENOUGH:
            self._compare(progress.model, job)

    def _compare(self, model: str, job: tuple[int, int, int]) -> None:
        costs = {place: _cost(runs) for place, runs in self._runs[job].items()}
        known_costs = {place: cost for place, cost in costs.items() if cost}
        nearest = min(known_costs, key=lambda place: place[1])
        unit = known_costs[nearest] / self.of(model, *nearest)
        for place, cost in known_costs.items():
            if place[1] > nearest[1]:
                seen = self._seen.setdefault((model, place), {})
                seen[job] = cost / unit
                table = self.known.setdefault((model, place[0]), {})
                table[place[1]] = max(1.0, median(seen.values()))


def _cost(runs: dict[int, RunRate]) -> float:
    """Return the median cost of the runs that are long enough; 0 where none is."""
    costs = [run.cost for run in runs.values() if run.reports >= ENOUGH]
    return median(costs) if costs else 0.0


class FixedSlowdowns(Slowdowns):
    """Slowdowns as they were told, from which nothing is learnt."""

    def learn(self, model: str, network: str, spread: object, status: float) -> None:
        pass
