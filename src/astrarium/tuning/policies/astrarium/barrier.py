"""This module finds the soonest instant by which all trials could have ended.

A guess of that instant says how wide each trial must be: on a part of a GPU if that is enough, else on as few
GPUs as are enough. (Dual approximations do the same for tasks whose width may be chosen: Turek, Wolf and Yu,
SPAA 1992.) Two plans are tried: all trials at once, each on as little as is enough; or equally many trials on
every shared GPU, and a queue, the longest first. Bisection finds the soonest guess that each plan can keep.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from heapq import heapify, heappop, heappush, heapreplace
from math import ceil, inf, sqrt
from typing import NamedTuple

from astrarium.tuning.policies._widths import GpuBudget, part, whole, wider
from astrarium.tuning.policies.astrarium.options import TrialOptions, trials_per_gpu
from astrarium.tuning.runtime import Width

NEAR = 1.01  # a guess that much above one that fails is near enough


class WidthPlan(NamedTuple):
    """A plan has a width for each trial; *end* says when the last trial would end, from now."""

    end: float
    widths: dict[int, Width]


TryPlan = Callable[[float], WidthPlan | None]


def soonest(trials: Sequence[TrialOptions], gpus: int) -> WidthPlan:
    ways: list[TryPlan] = [partial(_at_once, trials, gpus)]
    ways += [partial(_queued, trials, gpus, packed) for packed in range(1, trials_per_gpu(trials) + 1)]
    best = min((_bisected(trials, way) for way in ways), key=lambda plan: _expected(trials, gpus, plan))
    return WidthPlan(best.end, topped_up(trials, gpus, best.widths))


def _expected(trials: Sequence[TrialOptions], gpus: int, plan: WidthPlan) -> float:
    """Return when the plan is expected to end. The last trials of a queue will be spread over GPUs that are
    idle by then, so it ends between the plan's end and the end if no GPU were ever idle."""
    if plan.end == inf or GpuBudget(gpus, plan.widths.values()).free >= 0:
        return plan.end
    times = [(float(plan.widths[trial.trial]), trial.time(plan.widths[trial.trial])) for trial in trials]
    busy = max(sum(width * time for width, time in times) / gpus, *(time for _, time in times))
    return (plan.end + busy) / 2


def topped_up(trials: Sequence[TrialOptions], gpus: int, widths: dict[int, Width]) -> dict[int, Width]:
    """Use up spare GPUs: running trials keep what they have, and trials that would end last get more."""
    budget = GpuBudget(gpus, widths.values())
    topped = dict(widths)
    if budget.free < 0:
        return topped
    for trial in sorted(trials, key=lambda trial: -trial.has):
        if trial.has > topped[trial.trial] and budget.changed(topped[trial.trial], trial.has):
            topped[trial.trial] = trial.has
    last = [(-trial.time(topped[trial.trial]), number) for number, trial in enumerate(trials)]
    heapify(last)
    while last:
        end, number = heappop(last)
        trial = trials[number]
        step = wider(topped[trial.trial])
        pays = step <= len(trial.whole) and trial.time(step) < -end
        if pays and budget.changed(topped[trial.trial], step):
            topped[trial.trial] = step
            heappush(last, (-trial.time(step), number))
    return topped


def _bisected(trials: Sequence[TrialOptions], way: TryPlan) -> WidthPlan:
    low = max(1.0, *(trial.best for trial in trials))
    high = max(low, sum(max(trial.parts[0], trial.whole[0]) for trial in trials))
    best = way(low) or way(high) or WidthPlan(inf, {trial.trial: Width(1) for trial in trials})
    high = min(high, best.end)
    while high > low * NEAR:
        guess = sqrt(low * high)
        plan = way(guess)
        if plan is None:
            low = guess
        else:
            best = plan
            high = min(guess, plan.end)
    return best


def _at_once(trials: Sequence[TrialOptions], gpus: int, end: float) -> WidthPlan | None:
    widths = {}
    last = 0.0
    for trial in trials:
        width = _least_width(trial, end)
        if width is None:
            return None
        widths[trial.trial] = width
        last = max(last, trial.time(width))
    return WidthPlan(last, widths) if GpuBudget(gpus, widths.values()).free >= 0 else None


def _least_width(trial: TrialOptions, end: float) -> Width | None:
    for parts in range(len(trial.parts), 1, -1):
        if trial.parts[parts - 1] <= end:
            return part(parts)
    return next((whole(gpus) for gpus, time in enumerate(trial.whole, 1) if time <= end), None)


def _queued(trials: Sequence[TrialOptions], gpus: int, packed: int, end: float) -> WidthPlan | None:
    """Plan trials on several GPUs from now on; the others may wait in a queue."""
    widths = dict[int, Width]()
    shared = list[float]()
    alone = list[float]()
    wide = 0
    last = 0.0
    for trial in trials:
        if packed > 1 and trial.parts[packed - 1] <= end:
            widths[trial.trial] = part(packed)
            shared.append(trial.parts[packed - 1])
            continue
        count = next((count for count, time in enumerate(trial.whole, 1) if time <= end), 0)
        if not count:
            return None
        widths[trial.trial] = whole(count)
        if count == 1:
            alone.append(trial.whole[0])
        else:
            wide = wide + count
            last = max(last, trial.whole[count - 1])
    finish = _end_of_queue(shared, alone, gpus - wide, packed, end)
    return None if finish is None else WidthPlan(max(last, finish), widths)


def _end_of_queue(
    shared: list[float], alone: list[float], gpus: int, packed: int, end: float
) -> float | None:
    """Return when all would have ended, with as few shared GPUs as are enough; None if not by *end*."""
    least = ceil(sum(shared) / (packed * end))
    for count in range(least, min(gpus, least + 2) + 1):
        last = max(_last(shared, count * packed), _last(alone, gpus - count))
        if last <= end:
            return last
    return None


def _last(times: list[float], budget: int) -> float:
    """Return when the last would end if the longest go first, each to the slot that is free first."""
    if len(times) <= budget:
        return max(times, default=0.0)
    if budget < 1 or sum(times) == inf:
        return inf
    ordered = sorted(times, reverse=True)
    ends = ordered[:budget]
    heapify(ends)
    for time in ordered[budget:]:
        heapreplace(ends, ends[0] + time)
    return max(ends)
