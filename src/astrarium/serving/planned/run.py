"""A scenario is run by a plan: cells by the scenario's own policy, worker queues where GPUs are shared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from astrarium.core.arrivals import Arrivals
from astrarium.core.quantities import Time
from astrarium.placement.cells import Cell, cells, companies, station_numbers, stations
from astrarium.placement.interference import Interference
from astrarium.placement.plan import Plan, Replica, check
from astrarium.placement.problem import Problem
from astrarium.placement.routing import Numbers, assigned, balanced
from astrarium.run.experiment import EngineName
from astrarium.serving.level import Stopwatch, serve
from astrarium.serving.planned.parts import RecordPart, cell_scenario, part_of, together
from astrarium.serving.planned.queued import run_queues
from astrarium.serving.planning import plans
from astrarium.serving.record import ServingRecord
from astrarium.serving.scenario import Scenario, build

Progress = Callable[[Time], None]


@dataclass(frozen=True)
class PlannedRun:
    """A planned run's *parts* are the cells in order, and then worker queues, if there are any."""

    plan: Plan
    record: ServingRecord
    parts: tuple[RecordPart, ...]


def run_planned(
    scenario: Scenario,
    plan: Plan,
    problem: Problem | None = None,
    interference: Interference | None = None,
    engine: EngineName = "auto",
    progress: Progress | None = None,
) -> PlannedRun:
    """Run a scenario by a plan of its own problem, or of one that knows more forms of its models.

    Requests of a model without a replica are dropped when they come. *interference* is between replicas that
    share a GPU.
    """
    took = Stopwatch()
    problem = problem or plans.problem(scenario, planning=False)
    check(plan, problem)
    arrivals = build.arrivals(scenario)
    routes = Routes.of(plan, problem)
    where = assigned(arrivals.model, routes.parts)
    parts = list[RecordPart]()
    for place in range(routes.count):
        heard = _portion(progress, place, routes.count, scenario.duration)
        numbers = np.flatnonzero(where == place)
        parts.append(routes.run(place, scenario, arrivals, numbers, interference, engine, heard))
    record = together(scenario, build.setup(scenario, placed=True), arrivals, parts)
    return PlannedRun(plan, took.by(record), tuple(parts))


@dataclass(frozen=True)
class Routes:
    """Routes divide a model's requests: `parts[k, model]` to each cell, and then to each of the *queues*.

    One of *queues* is replicas that share GPUs or models.
    """

    problem: Problem
    cells: tuple[Cell, ...]
    queues: tuple[tuple[Replica, ...], ...]
    parts: Numbers

    @classmethod
    def of(cls, plan: Plan, problem: Problem) -> Routes:
        placed_cells = cells(plan, problem)
        of_cells, of_queues = stations(placed_cells, problem)
        parts = balanced([model.rate for model in problem.models], [*of_cells, *of_queues])
        numbers = np.array(station_numbers(placed_cells.queued), np.int64) + len(of_cells)
        groups = companies(placed_cells.queued)
        sums = [parts[np.unique(numbers[list(places)])].sum(axis=0, keepdims=True) for places in groups]
        queues = tuple(tuple(placed_cells.queued[place] for place in places) for places in groups)
        return cls(problem, placed_cells.cells, queues, np.concatenate([parts[: len(of_cells)], *sums]))

    @property
    def count(self) -> int:
        return len(self.parts)

    def run(
        self,
        place: int,
        scenario: Scenario,
        arrivals: Arrivals,
        numbers: Numbers,
        interference: Interference | None = None,
        engine: EngineName = "auto",
        progress: Progress | None = None,
    ) -> RecordPart:
        """Run one of the cells, or of the queues, with its part of the requests."""
        if place < len(self.cells):
            cell = self.cells[place]
            alone = cell_scenario(scenario, self.problem, cell)
            mine = part_of(arrivals, numbers, cell.models)
            record = serve(alone, build.setup(alone, placed=True), mine, engine, progress)
            return RecordPart(scenario.policy.name, cell, numbers, record)
        queue = self.queues[place - len(self.cells)]
        return run_queues(scenario, self.problem, queue, arrivals, numbers, interference)


def _portion(progress: Progress | None, place: int, count: int, duration: Time) -> Progress | None:
    """Return a progress for one part; each part is an equal step of the way."""
    if progress is None:
        return None
    return lambda now: progress((place * duration + min(now, duration)) // count)
