"""Widths where each result counts, and more trials may come any time: as much progress as GPUs can make.

Progress is weighed. A candidate that has come far was promoted for being good, and what becomes of it comes
after it: the square root of its iterations counts for it. Of two that have come as far, the one that is
nearer to its end goes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from astrarium.core.units import SECOND
from astrarium.tuning.policies.astrarium.options import Options, Slots, deepest, wider
from astrarium.tuning.runtime import Width


def most_progress(trials: Sequence[Options], gpus: int, favour: float) -> dict[int, Width]:
    """For every number of trials on a shared GPU: who weighs most runs, and each GPU goes to whom it brings
    most."""
    ordered = sorted(trials, key=lambda each: (-_weight(each, favour), each.trial))
    found = [_shared_out(ordered, gpus, packed, favour) for packed in range(1, deepest(trials) + 1)]
    return max(found, key=lambda each: each[0])[1]


def _shared_out(
    trials: Sequence[Options], gpus: int, packed: int, favour: float
) -> tuple[float, dict[int, Width]]:
    """What the plan is worth, and the plan. Those beyond what GPUs hold wait, with the least."""
    first = Width(1, packed)
    widths = {each.trial: first for each in trials}
    on = trials[: gpus * packed]
    weights = [_weight(each, favour) for each in on]
    worth = sum(weight * _speed(each, first) for weight, each in zip(weights, on, strict=True))
    slots = Slots(gpus, [first] * len(on))
    steps = [
        (-weight * _gain(each, first), n) for n, (weight, each) in enumerate(zip(weights, on, strict=True))
    ]
    heapify(steps)
    while steps:
        gain, n = heappop(steps)
        each, before = on[n], widths[on[n].trial]
        if gain >= 0 or not slots.changed(before, wider(before)):
            continue
        widths[each.trial] = wider(before)
        worth += weights[n] * (_speed(each, wider(before)) - _speed(each, before))
        heappush(steps, (-weights[n] * _gain(each, wider(before)), n))
    return worth, widths


def _weight(each: Options, favour: float) -> float:
    return float(each.total**favour * max(each.alone / SECOND, 1.0) ** (-favour / 2))


def _speed(each: Options, width: Width) -> float:
    """1 is one GPU alone."""
    return each.alone / max(each.time(width), 1.0)


def _gain(each: Options, width: Width) -> float:
    """Of speed for each GPU more; nothing where it goes no further."""
    step = wider(width)
    if step > len(each.whole):
        return 0.0
    return (_speed(each, step) - _speed(each, width)) / float(step - width)
