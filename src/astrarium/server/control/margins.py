"""Deadlines are planned with a margin: what answers have lately been later than planned.

A policy under load plans requests to end right before their deadlines. Whatever it does not know of then
makes all of them late by a hair: an event loop with too much to do, a worker that shares its core, a batch
that overruns. Such things come and go within seconds, so the margin follows every answer, and the policy is
handed earlier deadlines instead of a new plan. The books go by the real ones.
"""

from __future__ import annotations

from astrarium.core.units import MICROSECOND, Time
from astrarium.server.control.bounds import alone
from astrarium.server.control.flights import Flight
from astrarium.serving.setup import Setup

PUNCTUAL = 0.9  # the share of answers that are to come within the margin
STEP = 100 * MICROSECOND  # how far one answer can move it, nearly: a millisecond in eleven answers
LARGEST = 0.4  # of an objective: with less than the rest of it, hardly a batch could be planned


class Margins:
    """By model. Each late answer widens a margin by nine times what each punctual one narrows it."""

    def __init__(self, models: int) -> None:
        self._margins = [0.0] * models

    def answered(self, flight: Flight, now: Time) -> None:
        setup = flight.scheduler.setup
        slip = now - flight.planned_end - setup.network.response
        margin = self._margins[flight.model]
        margin += PUNCTUAL * STEP if slip > margin else (PUNCTUAL - 1.0) * STEP
        self._margins[flight.model] = min(max(0.0, margin), LARGEST * setup.models[flight.model].slo)

    def planned(self, model: int, deadline: Time, setup: Setup, now: Time) -> Time:
        """The deadline to plan with: one by which a request alone can still be tried, if the real one is."""
        soonest = now + alone(setup.models[model], setup.network)
        return max(deadline - round(self._margins[model]), min(deadline, soonest))
