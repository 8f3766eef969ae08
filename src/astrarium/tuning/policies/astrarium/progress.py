"""This module chooses widths where each result counts and more trials may come any time: those that make most
progress.

Progress is weighed. A candidate that has come far was promoted for being good, and further rungs wait for it:
it counts by the square root of its iterations. Of two that have come as far, the one nearer to its end goes
first.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from astrarium.core.quantities import SECOND
from astrarium.tuning.policies._widths import GpuBudget, wider
from astrarium.tuning.policies.astrarium.options import TrialOptions, trials_per_gpu
from astrarium.tuning.runtime import Width


def most_progress(trials: Sequence[TrialOptions], gpus: int, favour: float) -> dict[int, Width]:
    """Return the best widths over every number of trials on a shared GPU: trials of most weight run, and each
    further GPU goes where it brings most."""
    ordered = sorted(trials, key=lambda trial: (-_weight(trial, favour), trial.trial))
    plans = [_plan_with(ordered, gpus, packed, favour) for packed in range(1, trials_per_gpu(trials) + 1)]
    return max(plans, key=lambda plan: plan.worth).widths


class _ProgressPlan(NamedTuple):
    worth: float
    widths: dict[int, Width]


def _plan_with(trials: Sequence[TrialOptions], gpus: int, packed: int, favour: float) -> _ProgressPlan:
    """Plan with so many trials on a shared GPU. Trials beyond what the GPUs hold wait, with the least width
    of all."""
    first = Width(1, packed)
    widths = {trial.trial: first for trial in trials}
    on = trials[: gpus * packed]
    weights = [_weight(trial, favour) for trial in on]
    worth = sum(weight * _speed(trial, first) for weight, trial in zip(weights, on, strict=True))
    budget = GpuBudget(gpus, [first] * len(on))
    steps = [
        (-weight * _gain(trial, first), n) for n, (weight, trial) in enumerate(zip(weights, on, strict=True))
    ]
    heapify(steps)
    while steps:
        gain, n = heappop(steps)
        trial = on[n]
        before = widths[trial.trial]
        if gain >= 0 or not budget.changed(before, wider(before)):
            continue
        widths[trial.trial] = wider(before)
        worth += weights[n] * (_speed(trial, wider(before)) - _speed(trial, before))
        heappush(steps, (-weights[n] * _gain(trial, wider(before)), n))
    return _ProgressPlan(worth, widths)


def _weight(trial: TrialOptions, favour: float) -> float:
    return float(trial.total**favour * max(trial.alone / SECOND, 1.0) ** (-favour / 2))


def _speed(trial: TrialOptions, width: Width) -> float:
    """Return the trial's speed at this width; 1 is one GPU alone."""
    return trial.alone / max(trial.time(width), 1.0)


def _gain(trial: TrialOptions, width: Width) -> float:
    """Return the extra speed that each further GPU brings; zero once adding one no longer helps."""
    step = wider(width)
    if step > len(trial.whole):
        return 0.0
    return (_speed(trial, step) - _speed(trial, width)) / float(step - width)
