"""Batches that took longer than they need are counted: those run in parts, and those beside graphs.

The server is told now and then: batch by batch that would cost it too much.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from weakref import WeakKeyDictionary

from astrarium.core.quantities import MILLISECOND
from astrarium.serving.live.messages import BatchesSlow
from astrarium.serving.live.worker.batch_turn import BatchTurn, Clock, ServedModel

_TELL = 100 * MILLISECOND


class SlowBatches:
    """The slow batches of a worker are counted by model until *send* tells of them."""

    def __init__(self, clock: Clock, send: Callable[[BatchesSlow], None]) -> None:
        self._clock = clock
        self._send = send
        self._told_at = 0
        self._split: Counter[int] = Counter()
        self._beside_graphs: Counter[int] = Counter()
        self._known: WeakKeyDictionary[ServedModel, int] = WeakKeyDictionary()  # of what models count

    def add(self, turn: BatchTurn) -> None:
        """Count a batch that has had its turn."""
        model = turn.order.model
        if turn.parts > 1:
            self._split[model] += 1
        if turn.served is not None and (new := self._newly_beside_graphs(turn.served)):
            self._beside_graphs[model] += new

    def tell(self, idle: bool) -> None:
        """Tell what was counted, if that is due, or the worker is *idle*."""
        models = self._split.keys() | self._beside_graphs.keys()
        if models and (idle or self._clock() - self._told_at > _TELL):
            self._told_at = self._clock()
            for model in sorted(models):
                self._send(BatchesSlow(model, self._split[model], self._beside_graphs[model]))
            self._split.clear()
            self._beside_graphs.clear()

    def _newly_beside_graphs(self, served: ServedModel) -> int:
        now = served.beside_graphs
        new = now - self._known.get(served, served.beside_graphs_before)
        self._known[served] = now
        return new
