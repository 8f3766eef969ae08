"""How long messages take here: what a scenario that says nothing of delays is planned with.

A policy plans its batches to end `response` before the deadline and to be sent `control` before they start.
Too little, and answers are late by a hair; too much, and GPUs wait. Workers are asked to answer a number of
pings, and the delays are taken from the slow ones among them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from astrarium.core.units import MICROSECOND, Time
from astrarium.serving.setup import Network

PINGS = 200
# Beyond the trip itself: decoding, deciding and gathering inputs on the way there; writing answers, the
# books and the protocol on the way back. Of several margins tried near the goodput of one and of two emulated
# GPUs, these let most requests be in time; half of them costs late answers, twice of them drops.
CONTROL_MARGIN = 150 * MICROSECOND
RESPONSE_MARGIN = 400 * MICROSECOND


class Calibration:
    """*ping* sends one to a worker; `pong` hears when it came back."""

    def __init__(self, ping: Callable[[int], None], clock: Callable[[], Time]) -> None:
        self._ping, self._clock = ping, clock
        self._trips: list[Time] = []
        self._heard = asyncio.Event()

    def pong(self, sent: Time) -> None:
        self._trips.append(self._clock() - sent)
        self._heard.set()

    async def measure(self, workers: list[int]) -> Network:
        for turn in range(PINGS):
            self._heard.clear()
            self._ping(workers[turn % len(workers)])
            try:
                await asyncio.wait_for(self._heard.wait(), 1.0)
            except TimeoutError:
                continue  # that worker is gone; the others tell enough
        return delays_from(self._trips)


def delays_from(trips: list[Time]) -> Network:
    """Half a round trip each way, taken at the 95th percentile, and the margins."""
    slow = sorted(trips)[len(trips) * 95 // 100] if trips else 0
    return Network(control=slow // 2 + CONTROL_MARGIN, response=slow // 2 + RESPONSE_MARGIN)
