"""The drift watch gives the policy new times where batches take longer (or less) than the profile says.

Delays that were measured in a bad moment come down to what pings show since.

What is compared is the same quantile that a profile holds: most batches must end within the estimate, or
answers are late by a hair. The whole table of a model is scaled, so that its shape stays as measured. A new
plan means a new scheduler, so small differences are left alone; what comes and goes is for `margins`.

Whatever is planned beyond what the scenario says needs evidence of the last minute: where there is little,
the slowest of it counts, and where there is none, the plan goes back. So a bad moment is forgotten even if it
left nobody to show that it is over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from astrarium.core.quantities import MICROSECOND, SECOND, Time
from astrarium.server.control.calls.ticket import KeptGpu
from astrarium.server.control.health.bounds import bounded, scaled
from astrarium.serving.contract import ModelSpec, Network, Setup

QUANTILE = 0.95
FEWEST = 200  # batches of a model before it is taken for slower, or for faster than the scenario says
# ratios of measured to estimated that count as drift
SLOWER = 1.15
FASTER = 0.85
LARGEST_STEP = 2.0
SMALLEST_CHANGE = 500 * MICROSECOND  # of a delay
# A fresh policy has to learn the rates again, so plans that have been held against reality are looked at
# seldom. The first one comes from a profile alone, and may be far off.
FIRST = 5 * SECOND
EVERY = 30 * SECOND
RECENT = 60 * SECOND  # how long evidence holds where it is little
Samples = deque[tuple[Time, float]]  # when, and what was found


class DriftWatch:
    """A drift watch sees every finished batch; `revised` now and then returns a setup that fits better.

    *stated* is the scenario's own setup; *pinged* says what messages take now, and is left out where the
    scenario says what delays are.
    """

    def __init__(self, stated: Setup, now: Time, pinged: Callable[[], Network] | None = None) -> None:
        self._stated = stated
        self._pinged = pinged
        self._ratios: list[Samples] = [deque(maxlen=FEWEST) for _ in stated.models]  # to the stated profile
        self._judged = now
        self._pause = FIRST
        self.revisions = 0

    def saw(self, model: int, batches: Sequence[KeptGpu]) -> None:
        spec = self._stated.models[model]
        if spec.dynamic is None:  # others vary by nature, and their policies learn how
            stated = ((batch, _stated_time(spec, batch)) for batch in batches)
            self._ratios[model].extend((batch.finished, batch.kept / time) for batch, time in stated if time)

    def revised(self, setup: Setup, now: Time) -> Setup | None:
        """Return a setup that fits better, or None where nothing has drifted far enough."""
        if now - self._judged < self._pause:
            return None
        self._judged = now
        self._pause = min(2 * self._pause, EVERY)
        models = tuple(self._model(spec, now) for spec in setup.models)
        new = bounded(replace(setup, models=models, network=self._network(setup.network)), self._stated)
        if new == setup:
            return None
        self.revisions += 1
        return new

    def _model(self, spec: ModelSpec, now: Time) -> ModelSpec:
        stated = self._stated.models[spec.index]
        planned = spec.latency[1] / stated.latency[1]
        step = _to_plan_with(self._ratios[spec.index], QUANTILE, planned, 1.0, now) / planned
        if FASTER < step < SLOWER:
            return spec
        return scaled(stated, planned * min(max(step, 1 / LARGEST_STEP), LARGEST_STEP))

    def _network(self, planned: Network) -> Network:
        """Return delays that fit better; they only come down: what slows some messages is for margins."""
        if self._pinged is None:
            return planned
        pinged = self._pinged()
        control = _lower(planned.control, pinged.control)
        response = _lower(planned.response, pinged.response)
        return replace(planned, control=control, data=pinged.data, response=response)


def _stated_time(spec: ModelSpec, batch: KeptGpu) -> Time:
    """Return what the profile says of a batch; 0 where it ran in several parts of unequal length."""
    if spec.lengths is None:
        return spec.latency[batch.size]
    return spec.lengths.latency[batch.bucket][batch.size] if batch.bucket >= 0 else 0


def _to_plan_with(samples: Samples, quantile: float, planned: float, least: float, now: Time) -> float:
    """Return the value that *samples* say to plan with: a quantile of them where there are enough.

    Few of them can only bring down what is *planned*, and no lower than *least*, which needs no evidence.
    """
    enough = len(samples) == samples.maxlen
    measured = _quantile((value for _, value in samples), quantile) if enough else planned
    recent = [value for at, value in samples if now - at < RECENT]
    if len(recent) == samples.maxlen:
        return measured
    return min(measured, max(least, _quantile(recent, quantile))) if recent else min(measured, least)


def _quantile(values: Iterable[float], quantile: float) -> float:
    ordered = sorted(values)
    return ordered[int(quantile * len(ordered))]


def _lower(planned: Time, measured: Time) -> Time:
    return measured if planned - measured >= SMALLEST_CHANGE else planned
