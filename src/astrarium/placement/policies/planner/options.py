"""Options are batch sizes and shares worth trying: with room for waiting, and enough for a part of a load.

A request may wait for its batch to fill, for the batch before it, and then runs: a batch size has room if all
three fit the objective. A share carries a load if it keeps the model busy for no more than a part of the
time (`BUSY`): queues grow without end as that part nears one.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from functools import cache
from typing import NamedTuple

from astrarium.core.quantities import SECOND, Time
from astrarium.placement.gpu_share import share_factor
from astrarium.placement.problem import ALONE, PlacedModel, Problem, Shape

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
STEP = 0.05  # of a GPU: finer shares gain little, and cost many more looks
BUSY = 0.8
COMPANY = 1.1  # what neighbours are taken to cost before it is known who they are
PARTS = (1, 2, 3, 4, 6, 8)  # a load is divided among so many replicas


class ShareOption(NamedTuple):
    """A share option is a replica beside others: its batch, its share, and the rate that it carries."""

    batch: int
    share: float
    rate: float


class ModelOptions:
    """Model options go by places of models in the problem.

    *max_wait* is how long a batch may wait to fill (None: half of the objective).
    """

    def __init__(self, problem: Problem, max_wait: Time | None = 0, largest: int = SIZES[-1]) -> None:
        self.problem = problem
        self._max_wait = max_wait
        self.largest = largest
        self.usable = cache(self._usable)
        self.parts = cache(self._parts)
        self.time = cache(self._time)
        sizes = (
            self.usable(place, shape)[-1]
            for place in range(len(problem.models))
            for shape in self.shapes(place)
        )
        self.largest = max(sizes, default=1)  # that any model may run

    def _usable(self, model: int, shape: Shape) -> tuple[int, ...]:
        """Return the batch sizes that are answered in time if nobody waits, in rising order."""
        placed = self.problem.models[model]
        form = placed.forms.get(shape)
        if form is None:
            return ()
        within = min(self.largest, form.max_batch)
        sizes = {*(size for size in SIZES if size <= within), within}
        return tuple(size for size in sorted(sizes) if size > 0 and form.latency(size) <= placed.slo)

    def shapes(self, model: int) -> list[Shape]:
        return [shape for shape in sorted(self.problem.models[model].forms) if self.usable(model, shape)]

    def roomy(self, model: int, shape: Shape) -> int:
        """Return the largest batch that leaves room for waiting, or the smallest there is."""
        placed = self.problem.models[model]
        latency = placed.forms[shape].latency
        fit = [size for size in self.usable(model, shape) if 2 * latency(size) <= placed.slo]
        return fit[-1] if fit else self.usable(model, shape)[0]

    def shareable(self, model: int) -> bool:
        """Whether anything is known of the model on a part of a GPU."""
        placed = self.problem.models[model]
        known = any(demand.sm_utilization is not None for demand in placed.demands.values())
        return bool(self.usable(model, ALONE)) and (known or placed.igniter is not None)

    def _time(self, model: int, gpu: int, batch: int, share: float) -> Time:
        """Return a batch's time on a share of a GPU without others on it."""
        placed = self.problem.models[model]
        where = self.problem.gpus[gpu]
        return round(placed.forms[ALONE].latency(batch) * share_factor(placed, where, batch, share))

    def _parts(self, model: int, gpu: int) -> tuple[ShareOption, ...]:
        """Return the smallest shares that carry the whole load, half of it and so on, the largest first."""
        if not self.shareable(model):
            return ()
        rate = self.problem.models[model].rate
        parts = [self._smallest(model, gpu, rate / count) for count in PARTS]
        return tuple(dict.fromkeys(part for part in parts if part is not None))

    def _smallest(self, model: int, gpu: int, rate: float) -> ShareOption | None:
        carried = (self._least(model, gpu, size, rate) for size in self.usable(model, ALONE))
        fit = [part for part in carried if part is not None]
        return min(fit, key=lambda part: (part.share, part.batch), default=None)

    def _least(self, model: int, gpu: int, batch: int, rate: float) -> ShareOption | None:
        """Return the least share that carries a rate, by halving: time falls as the share grows."""
        steps = range(1, round(1 / STEP))
        least = bisect_left(steps, True, key=lambda step: self._does(model, gpu, batch, step, rate))
        return ShareOption(batch, round(steps[least] * STEP, 9), rate) if least < len(steps) else None

    def _does(self, model: int, gpu: int, batch: int, steps: int, rate: float) -> bool:
        took = self.time(model, gpu, batch, round(steps * STEP, 9)) * COMPANY
        slo = self.problem.models[model].slo
        return self._gather(model, batch, rate) + 2 * took <= slo and rate * took <= BUSY * batch * SECOND

    def _gather(self, model: int, batch: int, rate: float) -> Time:
        slo = self.problem.models[model].slo
        most = slo // 2 if self._max_wait is None else self._max_wait
        return min(most, round((batch - 1) * SECOND / rate)) if rate > 0 and batch > 1 else 0


def gpus_needed(options: ModelOptions) -> float:
    """Return a lower bound of GPUs: what all models keep busy in their best ways, with room for queues."""
    needed = (_busy(options, place, model) for place, model in enumerate(options.problem.models))
    return math.fsum(needed)


def _busy(options: ModelOptions, place: int, model: PlacedModel) -> float:
    ways = [
        model.rate * form.interval(size) * shape.gpus / size / SECOND
        for shape in options.shapes(place)
        for form in (model.forms[shape],)
        for size in options.usable(place, shape)
    ]
    parts = options.parts(place, 0) if options.problem.gpus else ()
    shared = [part.share * (model.rate / part.rate) for part in parts if part.rate > 0]
    return min([way / BUSY for way in ways] + shared, default=0.0)
