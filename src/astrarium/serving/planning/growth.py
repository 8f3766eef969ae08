"""Growth tells what breaks first: a plan's load is grown until some model misses its target.

Load grows by a factor, of all models together or of one alone. Factors are doubled until something breaks and
then narrowed; where the plan does not carry even today's load, they are halved until it does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec

from astrarium.core.quantities import to_ms
from astrarium.placement.gpu_share import share_factor
from astrarium.placement.plan import Replica
from astrarium.placement.problem import ALONE, PlacedModel
from astrarium.serving.planning.gpu_use import busy_for
from astrarium.serving.planning.load import judged, with_rates
from astrarium.serving.planning.search import Attempt, Planning

FARTHEST = 8.0
CLOSE = 0.02  # factors are known to this part
FULL = 0.9  # of a GPU's time, in full batches: waiting grows without bound from about here


class Growth(msgspec.Struct, frozen=True):
    """A growth's *carries* is the largest factor found at which every model keeps its target.

    *breaks* is the smallest found at which *first*, and *others*, do not; None where nothing broke as far as
    was looked.
    """

    carries: float
    breaks: float | None
    first: int | None = None
    attainment: float | None = None
    others: tuple[int, ...] = ()
    why: str = ""


def growth(planning: Planning, attempt: Attempt, model: int | None = None) -> Growth:
    """Grow the load of all models together, or of one; the router divides requests for the grown load."""
    problem = attempt.problem
    seen = dict[float, Attempt]()
    subject = "all load" if model is None else problem.models[model].name

    def carried(factor: float) -> bool:
        planning.watch.say(f"what breaks first: {subject} times {factor:.2f}")
        factors = [factor if model in (None, place) else 1.0 for place in range(len(problem.models))]
        seen[factor] = _grown(planning, attempt, factors)
        return not _short(seen[factor], attempt, model)

    good, bad = narrowed(carried)
    if bad is None:
        return Growth(good, None)
    first, *others = _short(seen[bad], attempt, model)
    failed = seen[bad]
    judgement = seen[bad].judged
    assert judgement is not None
    why = reason(failed, problem.models[first])
    return Growth(good, bad, first, judgement.models[first].mean, tuple(others), why)


def _grown(planning: Planning, attempt: Attempt, factors: list[float]) -> Attempt:
    """Judge the same plan with more requests."""
    rates = [model.rate * factor for model, factor in zip(attempt.problem.models, factors, strict=True)]
    judge = planning.judge(with_rates(attempt.problem, rates))
    judgement = judged(attempt.plan, judge, planning.load.fresh(factors))
    return replace(attempt, problem=planning.load.judging(attempt.problem, factors), judged=judgement)


def _short(grown: Attempt, today: Attempt, model: int | None) -> list[int]:
    """Return the models that miss their target, but for those that do so today where one model grows."""
    if model is None:
        return grown.short
    return [place for place in grown.short if place == model or place not in today.short]


def narrowed(carried: Callable[[float], bool]) -> tuple[float, float | None]:
    """Return the largest factor that is carried and the smallest that is not, close to each other.

    The first is 0 if nothing that was tried is carried.
    """
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


def reason(attempt: Attempt, model: PlacedModel) -> str:
    """Say why a model fails at the load of the attempt."""
    missing = attempt.plan.missing
    if model.index in missing:
        return f"it has no replica: {missing[model.index]}"
    gpu_parts = ((use.gpu.id, busy_for(use, model.index)) for use in attempt.uses)
    busy = {gpu: part for gpu, part in gpu_parts if part is not None}
    least = min(busy, key=lambda gpu: busy[gpu])
    where = f"GPU {least}" if len(busy) == 1 else f"the {len(busy)} GPUs that it is on"
    at_least = f"{busy[least]:.0%} busy" if len(busy) == 1 else f"at least {busy[least]:.0%} busy each"
    if busy[least] >= FULL:
        return f"{where} would be {at_least} even if every batch were full"
    return f"{where} would be {at_least}: {_waiting(attempt, model)}"


def _waiting(attempt: Attempt, model: PlacedModel) -> str:
    """Say what a request may have to wait for: its batch, and others' where turns are taken."""
    plan = attempt.plan
    problem = attempt.problem
    own = [(_longest(attempt, own_replica), own_replica) for own_replica in plan.of_model(model.index)]
    slowest, replica = max(own, key=lambda pair: pair[0])
    slo = to_ms(model.slo)
    sentence = (
        f"requests wait too long. A batch of {replica.batch} takes {slowest:.1f} ms of the {slo:g} ms, "
        f"which leaves {max(0.0, slo - slowest):.1f} ms to wait for others and for the GPU"
    )
    beside = [
        (_longest(attempt, other), problem.models[other.model].name)
        for _, own_replica in own
        for gpu in own_replica.gpus
        for other in plan.on_gpu(gpu)
        if other.model != model.index and other.share >= 1
    ]
    return sentence + ("; {1} by turns with it takes up to {0:.1f} ms".format(*max(beside)) if beside else "")


def _longest(attempt: Attempt, replica: Replica) -> float:
    """Return the milliseconds of a replica's largest batch."""
    model = attempt.problem.models[replica.model]
    gpu = attempt.problem.gpu(replica.gpus[0])
    factor = share_factor(model, gpu, replica.batch, replica.share)
    if attempt.speeds is not None and replica.shape == ALONE and replica.share >= 1:
        factor *= attempt.speeds.part(gpu.id, model.index, replica.batch)
    return to_ms(model.forms[replica.shape].latency(replica.batch)) * factor
