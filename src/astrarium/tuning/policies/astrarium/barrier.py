"""The soonest instant by which all trials could have ended.

A guess of that instant says how wide each must be: on a part of a GPU if that does, else on as few GPUs as
do. (So go dual approximations for tasks whose width may be chosen: Turek, Wolf and Yu, SPAA 1992.) Whether
all would be through by then is tried: all at once, each on as little as does; or with as many on every shared
GPU, and a queue, the longest first. Halving finds the soonest guess that holds for each of these plans.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from heapq import heapify, heappop, heappush, heapreplace
from math import ceil, inf, sqrt
from typing import NamedTuple

from astrarium.tuning.policies.astrarium.options import Options, Slots, deepest, part, whole, wider
from astrarium.tuning.runtime import Width

NEAR = 1.01  # a guess that much above one that fails is near enough


class Plan(NamedTuple):
    """*end*: when the last would be through, from now."""

    end: float
    widths: dict[int, Width]


Trying = Callable[[float], Plan | None]


def soonest(trials: Sequence[Options], gpus: int) -> Plan:
    ways: list[Trying] = [partial(_at_once, trials, gpus)]
    ways += [partial(_queued, trials, gpus, packed) for packed in range(1, deepest(trials) + 1)]
    best = min((_halved(trials, way) for way in ways), key=lambda plan: _expected(trials, gpus, plan))
    return Plan(best.end, topped_up(trials, gpus, best.widths))


def _expected(trials: Sequence[Options], gpus: int, plan: Plan) -> float:
    """Where there is a queue, its last ones will be spread over GPUs that are idle by then: it will end
    between the plan's end and where no GPU is ever idle."""
    if plan.end == inf or Slots(gpus, plan.widths.values()).free >= 0:
        return plan.end
    times = [(float(plan.widths[each.trial]), each.time(plan.widths[each.trial])) for each in trials]
    busy = max(sum(width * time for width, time in times) / gpus, *(time for _, time in times))
    return (plan.end + busy) / 2


def topped_up(trials: Sequence[Options], gpus: int, widths: dict[int, Width]) -> dict[int, Width]:
    """GPUs that are not needed: who runs keeps what it has, and who would end last gets more."""
    slots, found = Slots(gpus, widths.values()), dict(widths)
    if slots.free < 0:
        return found
    for each in sorted(trials, key=lambda each: -each.has):
        if each.has > found[each.trial] and slots.changed(found[each.trial], each.has):
            found[each.trial] = each.has
    last = [(-each.time(found[each.trial]), number) for number, each in enumerate(trials)]
    heapify(last)
    while last:
        end, number = heappop(last)
        each, step = trials[number], wider(found[trials[number].trial])
        pays = step <= len(each.whole) and each.time(step) < -end
        if pays and slots.changed(found[each.trial], step):
            found[each.trial] = step
            heappush(last, (-each.time(step), number))
    return found


def _halved(trials: Sequence[Options], way: Trying) -> Plan:
    low = max(1.0, *(each.best for each in trials))
    high = max(low, sum(max(each.parts[0], each.whole[0]) for each in trials))
    best = way(low) or way(high) or Plan(inf, {each.trial: Width(1) for each in trials})
    high = min(high, best.end)
    while high > low * NEAR:
        guess = sqrt(low * high)
        found = way(guess)
        if found is None:
            low = guess
        else:
            best, high = found, min(guess, found.end)
    return best


def _at_once(trials: Sequence[Options], gpus: int, end: float) -> Plan | None:
    widths, last = {}, 0.0
    for each in trials:
        width = _least(each, end)
        if width is None:
            return None
        widths[each.trial], last = width, max(last, each.time(width))
    return Plan(last, widths) if Slots(gpus, widths.values()).free >= 0 else None


def _least(each: Options, end: float) -> Width | None:
    for parts in range(len(each.parts), 1, -1):
        if each.parts[parts - 1] <= end:
            return part(parts)
    return next((whole(gpus) for gpus, time in enumerate(each.whole, 1) if time <= end), None)


def _queued(trials: Sequence[Options], gpus: int, packed: int, end: float) -> Plan | None:
    """Those on several GPUs begin now; others may wait."""
    widths, shared, alone, wide, last = dict[int, Width](), list[float](), list[float](), 0, 0.0
    for each in trials:
        if packed > 1 and each.parts[packed - 1] <= end:
            widths[each.trial] = part(packed)
            shared.append(each.parts[packed - 1])
            continue
        count = next((count for count, time in enumerate(each.whole, 1) if time <= end), 0)
        if not count:
            return None
        widths[each.trial] = whole(count)
        if count == 1:
            alone.append(each.whole[0])
        else:
            wide, last = wide + count, max(last, each.whole[count - 1])
    found = _through(shared, alone, gpus - wide, packed, end)
    return None if found is None else Plan(max(last, found), widths)


def _through(shared: list[float], alone: list[float], gpus: int, packed: int, end: float) -> float | None:
    """When they are, with as few GPUs for those who share as do; None: not by then."""
    least = ceil(sum(shared) / (packed * end))
    for count in range(least, min(gpus, least + 2) + 1):
        last = max(_last(shared, count * packed), _last(alone, gpus - count))
        if last <= end:
            return last
    return None


def _last(times: list[float], slots: int) -> float:
    """When the last is through, if they go the longest first, each to where it is free first."""
    if len(times) <= slots:
        return max(times, default=0.0)
    if slots < 1 or sum(times) == inf:
        return inf
    ordered = sorted(times, reverse=True)
    ends = ordered[:slots]
    heapify(ends)
    for time in ordered[slots:]:
        heapreplace(ends, ends[0] + time)
    return max(ends)
