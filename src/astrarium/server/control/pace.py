"""How many calls of a model can be open and still be answered in time, by the pace at which it is answered.

By its profile alone a model may promise more than the server carries: its workers and the event loop have to
keep up as well. While calls queue up all the time, what is answered in that time is what can be.
"""

from __future__ import annotations

from astrarium.core.units import MILLISECOND, Time
from astrarium.serving.setup import ModelSpec

STRETCH = 100 * MILLISECOND  # long enough for some batches to end
SHARE = 0.5  # of the objective that calls may queue for then: a longer queue answers nobody more, only later
RECOVERY = 1.5  # by which a limit is forgotten after each stretch in which calls did not queue up


class Pace:
    """One model on *gpus* GPUs."""

    def __init__(self, spec: ModelSpec, gpus: int, now: Time) -> None:
        self._promised = gpus / best if (best := best_time(spec)) else float("inf")
        self._queued = 2 * spec.max_batch * gpus  # so many open calls keep every GPU busy
        self._rate = self._promised  # answers per nanosecond
        self._began, self._answers, self._always_queued = now, 0, False

    def answered(self) -> None:
        self._answers += 1

    def too_many(self, calls: int, objective: Time, now: Time) -> bool:
        """Whether so many open calls are too many for a further one to be answered within *objective*."""
        if calls <= self._queued:
            self._always_queued = False
        if now - self._began >= STRETCH:
            self._next_stretch(now)
        return calls > self._rate * objective

    def _next_stretch(self, now: Time) -> None:
        if self._always_queued:
            self._rate = min(self._promised, SHARE * self._answers / (now - self._began))
        else:
            self._rate = min(self._promised, RECOVERY * self._rate)
        self._began, self._answers, self._always_queued = now, 0, True


def best_time(spec: ModelSpec) -> float:
    """The least GPU time that one request can take: its share of the best batch. 0 where times vary."""
    if spec.dynamic is not None:
        return 0.0
    return min(spec.latency[size] / size for size in range(1, spec.max_batch + 1))
