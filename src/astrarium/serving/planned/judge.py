"""Judging finds a plan's worth under the batching policy that will run it, fast enough for a search."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import numpy as np

from astrarium.core.arrivals import Arrivals
from astrarium.core.quantities import Time
from astrarium.core.random_streams import stream
from astrarium.placement.interference import Interference
from astrarium.placement.plan import Plan
from astrarium.placement.problem import PlacementRequests, Problem
from astrarium.placement.routing import Numbers, assigned
from astrarium.serving.ledger import Outcome
from astrarium.serving.planned.parts import RecordPart
from astrarium.serving.planned.run import Routes
from astrarium.serving.scenario import Scenario, build

_MOST_DRAWS = 16  # of requests whose judgements are remembered


@dataclass
class _Draw:
    """A draw is requests as columns, how many of each model count, and how many each part had in time."""

    requests: PlacementRequests
    arrivals: Arrivals
    totals: Numbers
    known: dict[object, Numbers] = field(default_factory=dict)


class PlanJudge:
    """A judge of plans serves requests that come before *warmup*, and does not count them.

    A cell that was seen before with the same requests is not run again."""

    def __init__(
        self, scenario: Scenario, problem: Problem, interference: Interference | None = None, warmup: Time = 0
    ) -> None:
        self._scenario = scenario
        self._problem = problem
        self._interference = interference
        self._warmup = warmup
        self._draws: list[_Draw] = []

    def __call__(self, plan: Plan, requests: PlacementRequests) -> list[float]:
        draw = self._draw(requests)
        routes = Routes.of(plan, self._problem)
        where: Numbers | None = None
        good = np.zeros(len(self._problem.models), np.int64)
        for place in range(routes.count):
            key = _key(routes, place)
            if key not in draw.known:
                where = assigned(draw.arrivals.model, routes.parts) if where is None else where
                draw.known[key] = self._good(routes, place, draw.arrivals, np.flatnonzero(where == place))
            good += draw.known[key]
        shares: list[float] = np.where(draw.totals > 0, good / np.maximum(draw.totals, 1), 1.0).tolist()
        return shares

    def _draw(self, requests: PlacementRequests) -> _Draw:
        """Return the draw of requests, known by identity: to compare them all would take too long."""
        for draw in self._draws:
            if draw.requests is requests:
                return draw
        arrivals = self._arrivals(requests)
        counted = arrivals.model[arrivals.time >= self._warmup]
        draw = _Draw(requests, arrivals, np.bincount(counted, minlength=len(self._problem.models)))
        self._draws = [*self._draws[1 - _MOST_DRAWS :], draw]
        return draw

    def _arrivals(self, requests: PlacementRequests) -> Arrivals:
        """Return arrivals; times of dynamic models are drawn anew: the run must not be known beforehand."""
        seed = int(stream(self._scenario.seed, "judged").integers(2**31))
        times = np.array(requests.times, np.int64)
        models = np.array(requests.models, np.int32)
        return build.arrivals_at(self._scenario.with_seed(seed), times, models)

    def _good(self, routes: Routes, place: int, arrivals: Arrivals, numbers: Numbers) -> Numbers:
        part = routes.run(place, self._scenario, arrivals, numbers, self._interference)
        return _in_time(part, self._warmup, len(self._problem.models))


def _in_time(part: RecordPart, warmup: Time, models: int) -> Numbers:
    requests = part.record.requests
    good = (requests.outcome == Outcome.IN_TIME) & (requests.arrival >= warmup)
    mine = np.array(part.cell.models, np.int64)[requests.model[good]]
    return np.bincount(mine, minlength=models)


def _key(routes: Routes, place: int) -> object:
    """Return all that decides how a part fares: its GPUs, its models, and which requests it gets."""
    if place >= len(routes.cells):
        queue = routes.queues[place - len(routes.cells)]
        models = sorted({replica.model for replica in queue})
        unexplained = tuple(msgspec.structs.replace(replica, why="") for replica in queue)
        return (unexplained, tuple(_dealt(routes, place, model) for model in models))
    cell = routes.cells[place]
    gpus = {gpu.id: (gpu.kind, gpu.memory) for gpu in routes.problem.gpus}
    dealt = tuple(_dealt(routes, place, model) for model in cell.models)
    return (tuple(gpus[id_] for id_ in cell.gpus), cell.limits, dealt)


def _dealt(routes: Routes, place: int, model: int) -> tuple[int, ...]:
    """Return all parts of a model's requests, after the place of this one among those that get any."""
    column = routes.parts[:, model].tolist()
    before = sum(part > 0 for part in column[:place])
    return (before if column[place] else -1, *(part for part in column if part))
