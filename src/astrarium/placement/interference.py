"""Interference slows replicas on one GPU in the simulated world: none, by iGniter's model, or as measured.

An interference model hears who is on a GPU and who of them is at work, and says how many times as long each
takes as it would alone with the same share. Policies may ask one too; none of them has to.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Annotated, Literal, Protocol

import msgspec

from astrarium.core.errors import InputError
from astrarium.placement.gpu_share import demand_at, traits_of
from astrarium.placement.igniter.model import WHOLE, GpuTraits, TenantLoad, predict
from astrarium.placement.problem import PlacementGpu, Problem

Slowdown = Annotated[float, msgspec.Meta(ge=1, description="times as long as alone")]


class Tenant(msgspec.Struct, frozen=True):
    """A tenant is a replica on a GPU: the batch it runs, its share from 0 to 1, and whether it is at work."""

    model: int
    batch: int
    share: float = 1.0
    busy: bool = True


class Interference(Protocol):
    def slowdowns(self, gpu: PlacementGpu, tenants: Sequence[Tenant]) -> tuple[float, ...]:
        """Return how many times as long each tenant takes, in order; 1 for those that are idle."""
        ...


class NoInterference:
    def slowdowns(self, gpu: PlacementGpu, tenants: Sequence[Tenant]) -> tuple[float, ...]:
        return (1.0,) * len(tenants)


class IgniterInterference:
    """iGniter's model predicts the slowdowns among tenants at work.

    It speaks of shares that the GPU has: where they add up to more, each is cut in proportion.
    """

    def __init__(self, problem: Problem) -> None:
        self._traits = {model.index: traits_of(model) for model in problem.models}

    def slowdowns(self, gpu: PlacementGpu, tenants: Sequence[Tenant]) -> tuple[float, ...]:
        traits = gpu.igniter or GpuTraits()
        crowd = max(1.0, math.fsum(tenant.share for tenant in tenants if tenant.busy))
        together = iter(predict(traits, [self._load(tenant, crowd) for tenant in tenants if tenant.busy]))
        return tuple(
            max(1.0, next(together).latency / self._alone(traits, tenant)) if tenant.busy else 1.0
            for tenant in tenants
        )

    def _alone(self, traits: GpuTraits, tenant: Tenant) -> float:
        return predict(traits, [self._load(tenant)])[0].latency

    def _load(self, tenant: Tenant, crowd: float = 1.0) -> TenantLoad:
        return TenantLoad(self._traits[tenant.model], tenant.batch, tenant.share * WHOLE / crowd)


class Pair(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A measured pair: how much *model* is slowed while *beside* is at work on the same GPU."""

    model: str
    beside: str
    slowdown: Slowdown


class SumPoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sum: float
    slowdown: Slowdown


class Sums(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All tenants are slowed by the sum of what those at work demand.

    Between the points are straight lines; before them is the first slowdown, and the last line goes on.
    """

    of: Literal["occupancy", "weighted_occupancy", "sm_utilization", "memory_bandwidth"]
    points: tuple[SumPoint, ...]

    def __post_init__(self) -> None:
        sums = [point.sum for point in self.points]
        if len(sums) < 2 or sums != sorted(set(sums)):
            raise InputError("points", sums, "two sums at least, in rising order")
        slowdowns = [point.slowdown for point in self.points]
        if slowdowns != sorted(slowdowns):
            raise InputError("points", slowdowns, "slowdowns that never fall as the sums rise")

    def at(self, total: float) -> float:
        place = bisect_right(self.points, total, key=lambda point: point.sum)
        if place == 0:
            return self.points[0].slowdown
        low, high = self.points[min(place, len(self.points) - 1) - 1 :][:2]
        return low.slowdown + (high.slowdown - low.slowdown) * (total - low.sum) / (high.sum - low.sum)


class SlowdownTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A slowdown table holds measured slowdowns, which multiply where all pairs with the others are known.

    Else the sum of demands tells; else *otherwise* stands for the pairs that are not there.
    """

    source: str = ""
    pairs: tuple[Pair, ...] = ()
    sums: Sums | None = None
    otherwise: Slowdown | None = None

    def __post_init__(self) -> None:
        if not self.pairs and self.sums is None:
            raise InputError("pairs", None, "pairs or sums, or both: this table holds no measurement")
        seen: set[tuple[str, str]] = set()
        for place, pair in enumerate(self.pairs):
            if (pair.model, pair.beside) in seen:
                duplicate = f"{pair.model} beside {pair.beside}"
                raise InputError(f"pairs[{place}]", duplicate, "a pair that stands only once")
            seen.add((pair.model, pair.beside))


class MeasuredInterference:
    def __init__(self, problem: Problem, table: SlowdownTable) -> None:
        self._models = {model.index: model for model in problem.models}
        self._pairs = {(pair.model, pair.beside): pair.slowdown for pair in table.pairs}
        self._table = table

    def slowdowns(self, gpu: PlacementGpu, tenants: Sequence[Tenant]) -> tuple[float, ...]:
        busy = [tenant for tenant in tenants if tenant.busy]
        slowed = iter([self._slowdown(place, busy) for place in range(len(busy))])
        return tuple(next(slowed) if tenant.busy else 1.0 for tenant in tenants)

    def _slowdown(self, place: int, busy: Sequence[Tenant]) -> float:
        name, *others = (self._models[tenant.model].name for tenant in (*busy[place:], *busy[:place]))
        unknown = [other for other in others if (name, other) not in self._pairs]
        if unknown and self._table.sums is not None:
            return self._table.sums.at(math.fsum(self._demand(tenant, self._table.sums) for tenant in busy))
        if unknown and self._table.otherwise is None:
            expected = "this pair among the measured ones, or `sums`, or `otherwise`"
            raise InputError("pairs", f"{name} beside {unknown[0]}", expected, self._table.source)
        return math.prod(self._pairs.get((name, other), self._table.otherwise or 1.0) for other in others)

    def _demand(self, tenant: Tenant, sums: Sums) -> float:
        model = self._models[tenant.model]
        demand: float | None = getattr(demand_at(model, tenant.batch), sums.of)
        if demand is None:
            expected = f"a model whose {sums.of} was measured: the table adds it up"
            raise InputError("sums.of", model.name, expected, self._table.source)
        return demand
