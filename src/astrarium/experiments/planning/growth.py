"""What breaks first: a plan's load is grown until some model no longer has what it should.

Load grows by a factor, of all models together or of one alone. Factors are doubled until something breaks and
then narrowed; where the plan does not carry even today's load, they are halved until it does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from astrarium.core.units import to_ms
from astrarium.experiments.planning.judging import Judged, judged
from astrarium.experiments.planning.search import Attempt, Planning
from astrarium.experiments.planning.use import GpuUse, uses
from astrarium.serving.placement.plan import Plan, Replica
from astrarium.serving.placement.problem import PlacedModel, Problem
from astrarium.serving.placement.sharing import share_factor

FARTHEST = 8.0
CLOSE = 0.02  # factors are known to this part
FULL = 0.9  # of a GPU's time, in full batches: waiting grows without bound from about here


class Growth(msgspec.Struct, frozen=True):
    """*carries*: the largest factor found at which every model has what it should. *breaks*: the smallest
    found at which *first*, and *others*, do not; None where nothing broke as far as was looked."""

    carries: float
    breaks: float | None
    first: int | None = None
    attainment: float | None = None
    others: tuple[int, ...] = ()
    why: str = ""


def growth(planning: Planning, attempt: Attempt, model: int | None = None) -> Growth:
    """Of all models together, or of one."""
    problem, plan = attempt.problem, attempt.plan
    judge, seen = planning.judge(problem), dict[float, Judged]()
    subject = "all load" if model is None else problem.models[model].name

    def carried(factor: float) -> bool:
        planning.watch.say(f"what breaks first: {subject} times {factor:.2f}")
        draws = planning.load.fresh(_factors(problem, factor, model))
        seen[factor] = judged(plan, judge, draws)
        return not _short(seen[factor], attempt, model, planning)

    good, bad = narrowed(carried)
    if bad is None:
        return Growth(good, None)
    first, *others = _short(seen[bad], attempt, model, planning)
    why = reason(plan, problem, problem.models[first], _factors(problem, bad, model))
    return Growth(good, bad, first, seen[bad].models[first].mean, tuple(others), why)


def _factors(problem: Problem, factor: float, model: int | None) -> list[float]:
    return [factor if model in (None, place) else 1.0 for place in range(len(problem.models))]


def _short(found: Judged, attempt: Attempt, model: int | None, planning: Planning) -> list[int]:
    """Who does not get what it should. Those that do not even today are not one model's to break."""
    below = found.below(planning.wishes.target)
    if model is None or attempt.judged is None:
        return below
    today = attempt.judged.below(planning.wishes.target)
    return [place for place in below if place == model or place not in today]


def narrowed(carried: Callable[[float], bool]) -> tuple[float, float | None]:
    """(the largest factor that is carried, the smallest that is not), close to each other. (0, x): nothing
    that was tried is carried."""
    good, bad = _bracket(carried)
    while bad is not None and good > 0 and bad - good > CLOSE * good:
        middle = (good + bad) / 2
        good, bad = (middle, bad) if carried(middle) else (good, middle)
    return good, bad


def _bracket(carried: Callable[[float], bool]) -> tuple[float, float | None]:
    factor = 1.0
    if carried(factor):
        while factor < FARTHEST:
            if not carried(2 * factor):
                return factor, 2 * factor
            factor *= 2
        return FARTHEST, None
    while factor > 1 / FARTHEST:
        if carried(factor / 2):
            return factor / 2, factor
        factor /= 2
    return 0.0, factor


def reason(plan: Plan, problem: Problem, model: PlacedModel, factors: Sequence[float]) -> str:
    """Why a model fails at a load."""
    if model.index in plan.missing:
        return f"it has no replica: {plan.missing[model.index]}"
    found = ((use.gpu.id, _busy_for(use, model)) for use in uses(plan, problem, factors))
    busy = {gpu: part for gpu, part in found if part is not None}
    least = min(busy, key=lambda gpu: busy[gpu])
    where = f"GPU {least}" if len(busy) == 1 else f"the {len(busy)} GPUs that it is on"
    at_least = f"{busy[least]:.0%} busy" if len(busy) == 1 else f"at least {busy[least]:.0%} busy each"
    if busy[least] >= FULL:
        return f"{where} would be {at_least} even if every batch were full"
    return f"{where} would be {at_least}: {_waiting(plan, problem, model)}"


def _busy_for(use: GpuUse, model: PlacedModel) -> float | None:
    """How busy a model finds a GPU: all of it where turns are taken, its own share where it is divided. None:
    it is not there."""
    mine = [each.busy for each in use.replicas if each.replica.model == model.index]
    if not mine:
        return None
    return max(mine) if use.divided else use.busy


def _waiting(plan: Plan, problem: Problem, model: PlacedModel) -> str:
    """What a request may have to wait for: its batch, and others' where turns are taken."""
    own = [(_longest(problem, each), each) for each in plan.of_model(model.index)]
    slowest, replica = max(own, key=lambda pair: pair[0])
    slo = to_ms(model.slo)
    told = (
        f"requests wait too long. A batch of {replica.batch} takes {slowest:.1f} ms of the {slo:g} ms, "
        f"which leaves {max(0.0, slo - slowest):.1f} ms to wait for others and for the GPU"
    )
    beside = [
        (_longest(problem, other), problem.models[other.model].name)
        for _, each in own
        for gpu in each.gpus
        for other in plan.on_gpu(gpu)
        if other.model != model.index and other.share >= 1
    ]
    return told + ("; {1} by turns with it takes up to {0:.1f} ms".format(*max(beside)) if beside else "")


def _longest(problem: Problem, replica: Replica) -> float:
    """Milliseconds of its largest batch."""
    model = problem.models[replica.model]
    gpu = next(gpu for gpu in problem.gpus if gpu.id == replica.gpus[0])
    factor = share_factor(model, gpu, replica.batch, replica.share)
    return to_ms(model.forms[replica.shape].latency(replica.batch)) * factor
