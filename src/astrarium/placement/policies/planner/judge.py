"""The planner's own judge, its samples of requests, and the interference that it assumes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from astrarium.core.quantities import SECOND, Time
from astrarium.placement.evaluation import evaluate
from astrarium.placement.gpu_share import demand_at
from astrarium.placement.interference import IgniterInterference, Interference, Tenant
from astrarium.placement.plan import Plan
from astrarium.placement.policies import Judge
from astrarium.placement.problem import PlacedModel, PlacementGpu, PlacementRequests, Problem
from astrarium.placement.worker_queues import Batching

GOLDEN = 0.6180339887498949
MOVED = 0.1  # of the whole time at most, to each side: what comes and goes with the hours stays together
STRETCHED = 2.0  # a sample whose rate is further off than this speaks of another load, and is left as it is
HORIZON = 25  # times the longest objective
LONGEST = 600 * SECOND
SHORTEST = 2 * SECOND

Instants = npt.NDArray[np.float64]


def samples(problem: Problem, count: int, size: int) -> list[PlacementRequests]:
    """Return several samples of requests to plan with, the problem's own first, if it has any.

    With several, a plan does not fit one of them by chance.
    """
    others = [another(problem, number, size) for number in range(1, count)]
    return [problem.requests if problem.requests.times else another(problem, 0, size), *others]


def another(problem: Problem, number: int, size: int) -> PlacementRequests:
    """Return the *number*-th sample; *size* requests are made up where the problem has none."""
    if problem.requests.times:
        return rearranged(problem.requests, problem.models, number)
    return made_up(problem.models, number, size)


def long_enough(problem: Problem, requests: PlacementRequests, size: int) -> PlacementRequests:
    """Return the first *size* requests, or more: a queue that grows without end needs time to show."""
    horizon = HORIZON * max((model.slo for model in problem.models), default=0)
    count = max(size, bisect_right(requests.times, horizon))
    return PlacementRequests(requests.times[:count], requests.models[:count])


def made_up(models: Sequence[PlacedModel], number: int, size: int) -> PlacementRequests:
    total = sum(model.rate for model in models)
    if total <= 0:
        return PlacementRequests()
    span = min(LONGEST, max(SHORTEST, round(size / total * SECOND)))
    columns = [
        (model.index, _poisson(model.rate, span, number * 1009 + place))
        for place, model in enumerate(models)
        if model.rate > 0
    ]
    return _merged(columns)


def _poisson(rate: float, span: Time, salt: int) -> Instants:
    """Return the instants of a Poisson process up to *span*."""
    mean = rate * span / SECOND
    count = int(mean + 6 * mean**0.5 + 10)
    gaps = -np.log1p(-_uniform(count, salt)) * SECOND / rate
    instants = np.cumsum(gaps)
    return instants[instants < span]


def _uniform(count: int, salt: int) -> Instants:
    """Return numbers in [0, 1) that look drawn: a counter, well mixed (the finalizer of splitmix64)."""
    with np.errstate(over="ignore"):
        mixed = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        mixed += np.uint64(salt) * np.uint64(0xD1342543DE82EF95)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(11)).astype(np.float64) / 2**53


def rearranged(requests: PlacementRequests, models: Sequence[PlacedModel], number: int) -> PlacementRequests:
    """Return the *number*-th other way in which the same requests might have met."""
    times = np.array(requests.times, np.float64)
    indices = np.array(requests.models)
    span = float(times[-1]) + 1
    columns = []
    for place, model in enumerate(models):
        own = _stretched(times[indices == model.index], model.rate, span)
        part = (GOLDEN * (place + 1) * number + 0.5 * number) % 1.0
        columns.append((model.index, np.sort((own + (2 * part - 1) * MOVED * span) % span)))
    return _merged(columns)


def _stretched(own: Instants, rate: float, span: float) -> Instants:
    """Stretch requests to as many as the rate asks for: in a short sample of bursts their number is luck."""
    wanted = rate * span / SECOND
    if not len(own) or not 1 / STRETCHED <= len(own) / max(wanted, 1e-9) <= STRETCHED:
        return own
    factor = len(own) / wanted
    longer = np.concatenate([own, own + span]) * factor
    return longer[longer < span]


def _merged(columns: Sequence[tuple[int, Instants]]) -> PlacementRequests:
    times = np.concatenate([instants for _, instants in columns]).astype(np.int64)
    models = np.concatenate([np.full(len(instants), index) for index, instants in columns])
    order = np.lexsort((models, times))
    return PlacementRequests.of(times[order], models[order])


CONTENTION = 0.15  # longer, beside others that use a whole GPU's worth: caches and memory are shared by all


class CautiousInterference:
    """Cautious interference errs on the safe side where nothing was measured.

    Models with iGniter's coefficients follow its model. Others are slowed by what their neighbours use of
    the GPU's memory bandwidth, or of its SMs where nobody measured that. Models that may use all of a GPU
    share it evenly with the others at work.
    """

    def __init__(self, problem: Problem) -> None:
        self._models = {model.index: model for model in problem.models}
        self._igniter = IgniterInterference(problem)
        self._known: dict[object, tuple[float, ...]] = {}

    def slowdowns(self, gpu: PlacementGpu, tenants: Sequence[Tenant]) -> tuple[float, ...]:
        """Return the slowdowns, remembered: a search meets the same tenants again and again."""
        key = (
            gpu.id,
            *((tenant.model, tenant.batch, tenant.share) if tenant.busy else None for tenant in tenants),
        )
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
    """Return a judge by worker queues, which run a plan where no batching policy does."""

    def judge(plan: Plan, requests: PlacementRequests) -> Sequence[float]:
        evaluation = evaluate(problem, plan, requests, interference, batching)
        return [1.0 if model.attainment is None else model.attainment for model in evaluation.models]

    return judge
