"""How planner judges a plan when nobody hands in a judge, and the company it fears."""

from __future__ import annotations

from collections.abc import Sequence

from astrarium.placement.evaluation import Batching, evaluate
from astrarium.placement.interference import IgniterInterference, Interference, Tenant, demand_at
from astrarium.placement.plan import Plan
from astrarium.placement.policies import Judge
from astrarium.placement.problem import PlacementGpu, Problem, Requests

CONTENTION = 0.15  # longer, beside others that use a whole GPU's worth: caches and memory are shared by all


class Caution:
    """iGniter's model for models with its coefficients. Others are slowed by what their neighbours use of the
    GPU's memory bandwidth, or of its SMs where nobody measured that: an assumption on the safe side. Whoever
    may use all of a GPU shares it evenly with the others at work."""

    def __init__(self, problem: Problem) -> None:
        self._models = {model.index: model for model in problem.models}
        self._igniter = IgniterInterference(problem)
        self._known: dict[object, tuple[float, ...]] = {}

    def slowdowns(self, gpu: PlacementGpu, tenants: Sequence[Tenant]) -> tuple[float, ...]:
        """Remembered: a search meets the same companies again and again."""
        key = (gpu.id, *((each.model, each.batch, each.share) if each.busy else None for each in tenants))
        if key not in self._known:
            self._known[key] = self._slowdowns(gpu, tenants)
        return self._known[key]

    def _slowdowns(self, gpu: PlacementGpu, tenants: Sequence[Tenant]) -> tuple[float, ...]:
        busy = [tenant for tenant in tenants if tenant.busy]
        uses = sum(self._use(tenant) for tenant in busy)
        predicted = self._igniter.slowdowns(gpu, tenants)
        return tuple(
            slowdown * (self._company(tenant, uses) if len(busy) > 1 and tenant.busy else 1.0)
            for tenant, slowdown in zip(tenants, predicted, strict=True)
        )

    def _company(self, tenant: Tenant, uses: float) -> float:
        if self._models[tenant.model].igniter is not None:
            return 1.0
        return 1 + CONTENTION * (uses - self._use(tenant))

    def _use(self, tenant: Tenant) -> float:
        demand = demand_at(self._models[tenant.model], tenant.batch)
        measured = demand.memory_bandwidth if demand.memory_bandwidth is not None else demand.sm_utilization
        return min(tenant.share, 1.0 if measured is None else measured)


def own_judge(problem: Problem, interference: Interference, batching: Batching) -> Judge:
    """Worker queues: what runs a plan where no batching policy does."""

    def judge(plan: Plan, requests: Requests) -> Sequence[float]:
        found = evaluate(problem, plan, requests, interference, batching)
        return [1.0 if model.attainment is None else model.attainment for model in found.models]

    return judge
