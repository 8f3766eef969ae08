"""AlpaServe's Algorithm 2 searches over buckets of models, buckets of GPUs, groups and their shapes.

Buckets share neither models nor GPUs, so a bucket on so many GPUs is searched once, whatever the others get.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
import numpy as np

from astrarium.placement.groups.layout import Group, GroupLayout
from astrarium.placement.groups.simulation import SimulatedRequests, score
from astrarium.placement.policies import Search
from astrarium.placement.policies._divisions import device_buckets, model_buckets, shapes, size
from astrarium.placement.policies._search_context import Bools, SearchContext, grouped, largest_node
from astrarium.placement.policies._selection import GroupAssignment, Selected
from astrarium.placement.problem import PlacementGpu

Select = Callable[[GroupAssignment, SimulatedRequests, Search], Selected]
Report = Callable[[Selected], None]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Look = tuple[tuple[int, int], ...]  # memory and node of GPUs: what matters about them


class BucketLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """These limits bound a bucket search.

    So many *finalists* among shapes are searched with all requests, after a look with a part of them
    (*glance*). Without *buckets*, all models stay together.
    """

    buckets: bool = True
    bucket_threshold: Annotated[float, msgspec.Meta(ge=0)] = 0.38
    imbalance: Annotated[float, msgspec.Meta(ge=1)] = 2.0
    device_buckets: Positive = 100
    max_stages: Positive = 8
    max_operators: Positive = 4
    glance: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.3
    finalists: Positive = 2


@dataclass
class BucketSearch:
    context: SearchContext
    limits: BucketLimits
    select: Select
    search: Search
    report: Report
    best_reported: int = -1  # what the best that was reported serves
    selections: list[Selected] = field(default_factory=list)
    known: dict[tuple[tuple[int, ...], Look], Selected] = field(default_factory=dict)

    def run(self) -> list[Selected]:
        """Return all selections that were searched to the end, the best first."""
        threshold = self.limits.bucket_threshold if self.limits.buckets else math.inf
        for buckets in model_buckets(self.context.models, threshold):
            for counts in self._device_buckets(buckets):
                if self.search.on and self._promising(buckets, counts):
                    self._offer(self._joined(buckets, counts))
        return sorted(self.selections, key=lambda selected: -selected.served)

    def _device_buckets(self, buckets: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
        models = self.context.models
        gpus = len(self.context.problem.gpus)
        if len(buckets) == 1:
            return [(gpus,)]
        totals = self.context.workload.totals
        demands = [float(sum(totals[place] * size(models[place]) for place in bucket)) for bucket in buckets]
        return device_buckets(demands, gpus, self.limits.imbalance, self.limits.device_buckets)

    def _offer(self, selected: Selected) -> None:
        self._tell(selected)
        self.selections.append(selected)

    def _tell(self, selected: Selected) -> None:
        if selected.served > self.best_reported:
            self.best_reported = selected.served
            self.report(selected)

    def _promising(self, buckets: Sequence[Sequence[int]], counts: Sequence[int]) -> bool:
        """Whether buckets might beat the best so far, given that fewer GPUs serve no more."""
        pairs = zip(buckets, counts, strict=True)
        best = max((selected.served for selected in self.selections), default=-1)
        return sum(self._at_most(tuple(bucket), count) for bucket, count in pairs) > best

    def _at_most(self, bucket: tuple[int, ...], gpus: int) -> int:
        totals = int(self.context.workload.totals[list(bucket)].sum())
        if len(set(_look(self.context.problem.gpus))) > 1:
            return totals
        known = (
            (len(look), selected.served) for (which, look), selected in self.known.items() if which == bucket
        )
        return min([totals, *(served for count, served in known if count >= gpus)])

    def _joined(self, buckets: Sequence[Sequence[int]], counts: Sequence[int]) -> Selected:
        groups: list[Group] = []
        served = 0
        first = 0
        for bucket, count in zip(buckets, counts, strict=True):
            selected = self._bucket(tuple(bucket), first, count)
            served += selected.served
            groups += selected.groups
            first += count
        return Selected(tuple(groups), served)

    def _bucket(self, bucket: tuple[int, ...], first: int, count: int) -> Selected:
        gpus = self.context.problem.gpus[first : first + count]
        key = (bucket, _look(gpus))
        if key not in self.known:
            numbers = {gpu.id: number for number, gpu in enumerate(gpus)}
            self.known[key] = _renamed(self._searched(bucket, gpus), numbers)
        return _renamed(self.known[key], {number: gpu.id for number, gpu in enumerate(gpus)})

    def _searched(self, bucket: tuple[int, ...], gpus: Sequence[PlacementGpu]) -> Selected:
        among = np.zeros(len(self.context.models), bool)
        among[list(bucket)] = True
        workload = self.context.workload.of_models(among)
        partitions = self._partitions(bucket, gpus)
        if len(partitions) > self.limits.finalists and self.limits.glance < 1:
            looks = self._glanced(partitions, workload.beginning(self.limits.glance), among)
            if not self.search.on:  # ended on the way: what was seen so far must do
                return self._rescored(looks[0], workload)
            partitions = [look.groups for look in looks[: self.limits.finalists]]
        best = Selected((), -1)
        for groups in partitions:
            selected = self.select(GroupAssignment(self.context, groups, among), workload, self.search)
            best = selected if selected.served > best.served else best
            if among.all():
                self._tell(best)
        return best if partitions else Selected((), 0)

    def _glanced(
        self, partitions: list[tuple[Group, ...]], part: SimulatedRequests, among: Bools
    ) -> list[Selected]:
        """Return selections of all partitions, searched with a part of the requests, the best first."""
        selections = [
            self.select(GroupAssignment(self.context, groups, among), part, self.search)
            for groups in partitions
        ]
        return sorted(selections, key=lambda selected: -selected.served)

    def _rescored(self, selected: Selected, workload: SimulatedRequests) -> Selected:
        layout = GroupLayout.of(self.context.tables, selected.groups)
        return Selected(selected.groups, score(layout, workload).served)

    def _partitions(self, bucket: Sequence[int], gpus: Sequence[PlacementGpu]) -> list[tuple[Group, ...]]:
        models = [self.context.models[place] for place in bucket]
        limits = self.limits
        tried = shapes(models, largest_node(gpus), limits.max_stages, limits.max_operators)
        return [self._known(grouped(gpus, shape)) for shape in tried]

    def _known(self, groups: tuple[Group, ...]) -> tuple[Group, ...]:
        """Leave out groups that no model can run on: GPUs left over may make up such pipelines."""
        return tuple(group for group in groups if group.shape in self.context.tables.kinds)


def _renamed(selected: Selected, names: dict[int, int]) -> Selected:
    groups = (
        Group(tuple(names[gpu] for gpu in group.gpus), group.shape, group.models) for group in selected.groups
    )
    return Selected(tuple(groups), selected.served)


def _look(gpus: Sequence[PlacementGpu]) -> Look:
    return tuple((gpu.memory, gpu.node - gpus[0].node) for gpu in gpus)
