"""The real world of the serving level, as far as the level itself knows it: books that do not grow.

A server runs for months, so its ledger keeps open requests and batches only and tells how each ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from astrarium.core.units import Time
from astrarium.serving.ledger import Fate, Ledger, Outcome
from astrarium.serving.state import Batch, ServingState

# request, how and why it ended, when the client has its answer, the number of its batch (-1: none)
RequestEnded = Callable[[int, Outcome, str, Time, int], None]
BatchEnded = Callable[[int, Fate, Time, Time], None]  # batch, fate, started, finished


class LiveLedger(Ledger):
    """Same words, other memory: what has ended is told and forgotten."""

    def __init__(self, request_ended: RequestEnded, batch_ended: BatchEnded) -> None:
        super().__init__()
        self._request_ended, self._batch_ended = request_ended, batch_ended
        self._batches = 0
        self.batch_dispatched: Any = {}  # by number, like the column it replaces

    def open_request(self, request: int) -> None:
        """The books know who waits."""

    def end_request(self, request: int, outcome: Outcome, reason: str, now: Time, batch: int = -1) -> None:
        self._request_ended(request, outcome, reason, now, batch)

    def open_batch(self, model: int, gpu: int, size: int, now: Time) -> int:
        number, self._batches = self._batches, self._batches + 1
        self.batch_dispatched[number] = now
        return number

    def end_batch(self, batch: int, fate: Fate, started: Time, finished: Time) -> None:
        """A preempted batch ends twice: when it is stopped, and when its start has been reported."""
        self.batch_dispatched.pop(batch, None)
        self._batch_ended(batch, fate, started, finished)


def sent_since(state: ServingState, gpu: int, last: int) -> Iterator[Batch]:
    """Batches on a GPU that are newer than number *last*, in the order they were sent."""
    return (batch for batch in state.gpus[gpu].batches if batch.run > last)
