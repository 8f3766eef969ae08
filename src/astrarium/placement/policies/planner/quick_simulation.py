"""The quick simulation tells what a draft is worth: the native group simulation, with sites as groups.

Models that take turns on a site are a group; each model beside others is a group of its own, slowed by the
company of all of them at work. Batches are made of whoever waits when the site is free, up to the limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from astrarium.core.quantities import FOREVER
from astrarium.placement.groups.layout import Clocks, GroupLayout, Tables
from astrarium.placement.groups.runtime import GroupRuntime
from astrarium.placement.groups.simulation import Score, SimulatedRequests, score
from astrarium.placement.interference import Interference, Tenant
from astrarium.placement.policies.planner.draft import Draft, Site
from astrarium.placement.policies.planner.options import ModelOptions
from astrarium.placement.problem import PlacementRequests, Problem, Shape

LATE = FOREVER // 1024  # of batches beyond a limit: nobody would be answered in time
KINDS = 256  # kept at a time, at least

Floats = npt.NDArray[np.float64]


class SimulatedGroup(NamedTuple):
    """A simulated group has models with their batch limits.

    A model beside others is a group of its own, with its share, its GPU and how much the others slow it.
    """

    shape: Shape
    members: tuple[tuple[int, int], ...]
    share: float = 1.0
    gpu: int = 0
    slowdown: float = 1.0


@dataclass(frozen=True)
class DraftResult:
    """A draft's result on one sample: the part of each model's requests in time, each site's work, its worth.

    *lost* is what each model loses of the worth.
    """

    attained: Floats
    work: Floats
    worth: float
    lost: Floats

    def goodput(self, problem: Problem) -> float:
        """Return the part of all requests that is answered in time."""
        rates = np.array([model.rate for model in problem.models])
        part = float((rates * self.attained).sum() / rates.sum()) if rates.sum() else float(self.worth)
        return max(0.0, min(1.0, part))


class QuickSimulation:
    """A quick simulation runs drafts on samples of requests; *cost* counts the requests simulated so far."""

    def __init__(
        self,
        options: ModelOptions,
        requests: Sequence[PlacementRequests],
        runtime: GroupRuntime,
        interference: Interference,
        weights: Floats,
    ) -> None:
        self.options = options
        self.problem = options.problem
        self.requests = requests
        self._interference = interference
        self._runtime = msgspec.structs.replace(runtime, max_batch=options.largest)
        self._tables = Tables.of(self.problem.models, self._runtime)
        self._workloads = [SimulatedRequests.of(self._tables, draw) for draw in requests]
        kinds = max(KINDS, 32 * len(self.problem.gpus))
        self._times = np.zeros((kinds, *self._tables.times.shape[1:]), self._tables.times.dtype)
        self._kinds: dict[SimulatedGroup, int] = {}
        self._result: dict[tuple[frozenset[Site], int], DraftResult] = {}
        self.weights = weights
        self.cost = 0

    @property
    def samples(self) -> int:
        return len(self._workloads)

    def __call__(self, draft: Draft, sample: int = 0) -> DraftResult:
        key = (frozenset(draft), sample)
        if key not in self._result:
            self._result[key] = self._look(draft, self._workloads[sample])
        return self._result[key]

    def worth(self, draft: Draft) -> float:
        """Return the mean worth of a draft over all samples."""
        return sum(self(draft, sample).worth for sample in range(self.samples)) / self.samples

    def served(self, draft: Draft, model: int) -> float:
        """Return the part of a model's requests that is answered in time, over all samples."""
        parts = [float(self(draft, sample).attained[model]) for sample in range(self.samples)]
        return sum(parts) / len(parts)

    def _look(self, draft: Draft, workload: SimulatedRequests) -> DraftResult:
        blocks = [(number, block) for number, site in enumerate(draft) for block in self._blocks(site)]
        scored = self._score([block for _, block in blocks], workload)
        self.cost += len(workload.arrivals)
        work = np.zeros(len(draft))
        for (number, _), took in zip(blocks, scored.work, strict=True):
            work[number] += float(took)
        return self._valued(draft, scored, work, workload)

    def _valued(self, draft: Draft, scored: Score, work: Floats, workload: SimulatedRequests) -> DraftResult:
        placed = np.zeros(len(self.problem.models))
        placed[[member.model for site in draft for member in site.members]] = 1.0
        asked = workload.totals > 0
        attained = np.where(asked, scored.good / np.maximum(workload.totals, 1), placed)
        lost = self.weights * (1 - attained)
        return DraftResult(attained, work, float(1 - lost.sum()), lost)

    def _blocks(self, site: Site) -> Iterator[SimulatedGroup]:
        if not site.side:
            if site.members:
                yield SimulatedGroup(
                    site.shape, tuple((member.model, member.batch) for member in site.members)
                )
            return
        indices = [self.problem.models[member.model].index for member in site.members]
        tenants = [
            Tenant(i, member.batch, member.share) for i, member in zip(indices, site.members, strict=True)
        ]
        slowdowns = self._interference.slowdowns(self.problem.gpus[site.gpus[0]], tenants)
        for member, slowdown in zip(site.members, slowdowns, strict=True):
            pair = (member.model, member.batch)
            yield SimulatedGroup(site.shape, (pair,), member.share, site.gpus[0], round(slowdown, 4))

    def _score(self, blocks: Sequence[SimulatedGroup], workload: SimulatedRequests) -> Score:
        if not blocks or not len(workload.arrivals):
            return Score(np.zeros(len(workload.totals), np.int64), np.zeros(len(blocks)))
        if len(self._kinds) + len(blocks) > len(self._times):
            self._kinds.clear()
        kind = np.array([self._kind(block) for block in blocks], np.int32)
        stages = np.array([block.shape.stages for block in blocks], np.int32)
        hosts = np.zeros((len(blocks), len(self.problem.models)), np.uint8)
        for row, block in zip(hosts, blocks, strict=True):
            row[[model for model, _ in block.members]] = 1
        tables = Tables({}, self._times, self._tables.slo, self._tables.place, self._runtime)
        return score(GroupLayout(tables, kind, stages, hosts), workload)

    def _kind(self, block: SimulatedGroup) -> int:
        if block not in self._kinds:
            number = self._kinds[block] = len(self._kinds)
            self._fill(self._times[number], block)
        return self._kinds[block]

    def _fill(self, times: Clocks, block: SimulatedGroup) -> None:
        """Fill a group's times: [model, batch - 1, stage]."""
        known = self._tables.times[self._tables.kinds[block.shape]]
        for model, limit in block.members:
            times[model] = known[model]
            if block.share < 1:
                for batch in range(1, limit + 1):
                    took = self.options.time(model, block.gpu, batch, block.share) * block.slowdown
                    times[model, batch - 1, 0] = took / self._runtime.unit
            times[model, limit:, 0] = LATE


def worths(rates: Sequence[float], even: float) -> Floats:
    """Return what models count for: by their requests, or (*even* is 1) all alike.

    A model without requests counts a little: it should be placed if it can.
    """
    total = sum(rates) or 1.0
    weights = np.array([max((1 - even) * rate / total + even / len(rates), 1e-6) for rate in rates])
    return weights / weights.sum() if len(weights) else weights
