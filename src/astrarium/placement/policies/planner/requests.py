"""Requests that planner plans with: several samples, so that a plan does not fit one of them by chance.

Where a problem brings requests, further samples are made of them: each model's are moved in time by a part of
the whole that differs from model to model, so that bursts of models meet otherwise, and stretched to the rate
that the problem names. A model's own bursts stay what they are. Where there are none, models come as Poisson
processes at their rates, from fixed numbers that only look like chance.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from astrarium.core.units import SECOND, Time
from astrarium.placement.problem import PlacedModel, Problem, Requests

GOLDEN = 0.6180339887498949
MOVED = 0.1  # of the whole time at most, to each side: what comes and goes with the hours stays together
STRETCHED = 2.0  # a sample whose rate is further off than this speaks of another load, and is left as it is
HORIZON = 25  # times the longest objective
LONGEST, SHORTEST = 600 * SECOND, 2 * SECOND

Instants = npt.NDArray[np.float64]


def samples(problem: Problem, count: int, size: int) -> list[Requests]:
    """The problem's own requests first, if it has any."""
    others = [another(problem, number, size) for number in range(1, count)]
    return [problem.requests if problem.requests.times else another(problem, 0, size), *others]


def another(problem: Problem, number: int, size: int) -> Requests:
    """The *number*-th sample. *size*: so many are made up where there are none."""
    if problem.requests.times:
        return rearranged(problem.requests, problem.models, number)
    return made_up(problem.models, number, size)


def long_enough(problem: Problem, requests: Requests, size: int) -> Requests:
    """The first *size*, or more: a queue that grows without end must have the time to be seen."""
    seen = HORIZON * max((model.slo for model in problem.models), default=0)
    count = max(size, bisect_right(requests.times, seen))
    return Requests(requests.times[:count], requests.models[:count])


def made_up(models: Sequence[PlacedModel], number: int, size: int) -> Requests:
    total = sum(model.rate for model in models)
    if total <= 0:
        return Requests((), ())
    span = min(LONGEST, max(SHORTEST, round(size / total * SECOND)))
    columns = [
        (model.index, _poisson(model.rate, span, number * 1009 + place))
        for place, model in enumerate(models)
        if model.rate > 0
    ]
    return _merged(columns)


def _poisson(rate: float, span: Time, salt: int) -> Instants:
    """Instants up to *span*."""
    mean = rate * span / SECOND
    count = int(mean + 6 * mean**0.5 + 10)
    gaps = -np.log1p(-_uniform(count, salt)) * SECOND / rate
    instants = np.cumsum(gaps)
    return instants[instants < span]


def _uniform(count: int, salt: int) -> Instants:
    """Numbers in [0, 1) that look drawn: a counter, well mixed (the finalizer of splitmix64)."""
    with np.errstate(over="ignore"):
        mixed = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        mixed += np.uint64(salt) * np.uint64(0xD1342543DE82EF95)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(11)).astype(np.float64) / 2**53


def rearranged(requests: Requests, models: Sequence[PlacedModel], number: int) -> Requests:
    """The *number*-th other way in which the same requests might have met."""
    times, indices = np.array(requests.times, np.float64), np.array(requests.models)
    span = float(times[-1]) + 1
    columns = []
    for place, model in enumerate(models):
        own = _stretched(times[indices == model.index], model.rate, span)
        part = (GOLDEN * (place + 1) * number + 0.5 * number) % 1.0
        columns.append((model.index, np.sort((own + (2 * part - 1) * MOVED * span) % span)))
    return _merged(columns)


def _stretched(own: Instants, rate: float, span: float) -> Instants:
    """As many as the rate asks for: in a short sample of bursts their number is luck."""
    wanted = rate * span / SECOND
    if not len(own) or not 1 / STRETCHED <= len(own) / max(wanted, 1e-9) <= STRETCHED:
        return own
    factor = len(own) / wanted
    longer = np.concatenate([own, own + span]) * factor
    return longer[longer < span]


def _merged(columns: Sequence[tuple[int, Instants]]) -> Requests:
    times = np.concatenate([instants for _, instants in columns]).astype(np.int64)
    models = np.concatenate([np.full(len(instants), index) for index, instants in columns])
    order = np.lexsort((models, times))
    return Requests(tuple(times[order].tolist()), tuple(models[order].tolist()))
