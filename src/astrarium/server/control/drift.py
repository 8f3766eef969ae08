"""Plans follow drift: where batches have come to take longer (or less) than the profile says, or answers are
longer under way than was planned with, the policy is told anew.

What is compared is the same quantile that a profile holds: most batches must end within the estimate, or
answers are late by a hair. The whole table of a model is scaled, so that its shape stays as measured. The
response delay is what passes between a batch's planned end and an answer: everything that nobody planned for.
A new plan means a new scheduler, so small differences are left alone.
"""

from __future__ import annotations

from collections import deque

from msgspec.structs import replace

from astrarium.core.units import FOREVER, MICROSECOND, SECOND, Time
from astrarium.engines.orders import BatchDone
from astrarium.server.control.flights import Flight
from astrarium.serving.setup import ModelSpec, Setup

QUANTILE = 0.95
FEWEST = 200  # batches of a model before its profile is judged
SLOWER, FASTER = 1.15, 0.85  # ratios of measured to estimated that count as drift
LARGEST_STEP = 2.0
ANSWERED, FEWEST_ANSWERS = 0.9, 1000  # the quantile of delays to plan with, and of how many
SMALLEST_CHANGE = 500 * MICROSECOND  # of the response delay
LARGEST_RESPONSE = 0.2  # of the tightest objective: beyond that, waiting costs more than being late
EVERY = 30 * SECOND  # a fresh policy has to learn the rates again


class DriftWatch:
    """Sees every finished batch; `revised` now and then answers with a setup that fits better."""

    def __init__(self, models: int, now: Time, delays_too: bool = True) -> None:
        self._delays_too = delays_too  # not where the scenario says what they are
        self._ratios: list[deque[float]] = [deque(maxlen=FEWEST) for _ in range(models)]
        self._delays: deque[Time] = deque(maxlen=FEWEST_ANSWERS)
        self._judged = now
        self.revisions = 0

    def saw(self, flight: Flight, done: BatchDone) -> None:
        spec = flight.scheduler.setup.models[flight.model]
        if spec.dynamic is None:  # others vary by nature, and their policies learn how
            took = done.finished - done.started
            self._ratios[flight.model].append(took / spec.latency[len(flight.requests)])

    def answered(self, flight: Flight, now: Time) -> None:
        self._delays.append(now - flight.planned_end)

    def revised(self, setup: Setup, now: Time) -> Setup | None:
        """None where nothing has drifted far enough."""
        if now - self._judged < EVERY:
            return None
        self._judged = now
        network = replace(setup.network, response=self._response(setup))
        new = replace(setup, models=self._models(setup), network=network)
        if new == setup:
            return None
        self.revisions += 1
        self._delays.clear()
        return new

    def _models(self, setup: Setup) -> tuple[ModelSpec, ...]:
        changed = {spec.index: scale for spec in setup.models if (scale := self._scale(spec))}
        for index in changed:
            self._ratios[index].clear()
        return tuple(scaled(spec, changed.get(spec.index, 1.0)) for spec in setup.models)

    def _response(self, setup: Setup) -> Time:
        planned = setup.network.response
        if not self._delays_too or len(self._delays) < FEWEST_ANSWERS:
            return planned
        most = round(LARGEST_RESPONSE * min(spec.slo for spec in setup.models))
        found = sorted(self._delays)[int(ANSWERED * len(self._delays))]
        wanted = max(0, min(found, most))
        return wanted if abs(wanted - planned) >= SMALLEST_CHANGE else planned

    def _scale(self, spec: ModelSpec) -> float | None:
        ratios = self._ratios[spec.index]
        if len(ratios) < FEWEST:
            return None
        ratio = sorted(ratios)[int(QUANTILE * len(ratios))]
        if FASTER < ratio < SLOWER:
            return None
        largest = spec.slo / spec.latency[1]  # one request alone must keep its objective, in theory
        return min(max(ratio, 1 / LARGEST_STEP), LARGEST_STEP, largest)


def scaled(spec: ModelSpec, scale: float) -> ModelSpec:
    if scale == 1.0:
        return spec
    times = tuple(time if time >= FOREVER else max(1, round(time * scale)) for time in spec.latency[1:])
    return replace(spec, latency=(0, *times))
