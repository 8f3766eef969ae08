"""Calibration measures how long messages take, to plan scenarios that say nothing of delays."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import count

from astrarium.core.quantities import MICROSECOND, Time
from astrarium.serving.contract import Network

PINGS = 200  # at the start, and how many of the last ones count
# Beyond the trip itself: decoding, deciding and gathering inputs on the way there; writing answers, the
# accounts and the protocol on the way back. Of several margins tried near the goodput of one and of two
# emulated GPUs, these let most requests be in time; half of them costs late answers, twice of them drops.
CONTROL_MARGIN = 150 * MICROSECOND
RESPONSE_MARGIN = 400 * MICROSECOND


class Calibration:
    """Calibration sends pings by *ping*; `pong` hears when each was there and that it came back."""

    def __init__(self, ping: Callable[[int], None], clock: Callable[[], Time]) -> None:
        self._ping = ping
        self._clock = clock
        self._there: deque[Time] = deque(maxlen=PINGS)
        self._back: deque[Time] = deque(maxlen=PINGS)
        self._turns = count()
        self._pong_came = asyncio.Event()

    def pong(self, sent: Time, received: Time, heard: Time = 0) -> None:
        self._there.append(received - sent)
        self._back.append((heard or self._clock()) - received)
        self._pong_came.set()

    async def measure(self, workers: Sequence[int]) -> None:
        for _ in range(PINGS):
            self._pong_came.clear()
            self.ping_one(workers)
            try:
                await asyncio.wait_for(self._pong_came.wait(), 1.0)
            except TimeoutError:
                continue  # that worker is gone; the others tell enough

    def ping_one(self, idle: Sequence[int]) -> None:
        """Ping one of these workers, in turn: one that runs a batch would answer after it."""
        if idle:
            self._ping(idle[next(self._turns) % len(idle)])

    def delays(self) -> Network:
        control = _slow(self._there) + CONTROL_MARGIN
        response = _slow(self._back) + RESPONSE_MARGIN
        return Network(control=control, response=response)


def _slow(trips: Iterable[Time]) -> Time:
    """Return the 95th percentile of the trips."""
    ordered = sorted(trips)
    return ordered[len(ordered) * 95 // 100] if ordered else 0
