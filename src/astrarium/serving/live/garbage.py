"""Cyclic garbage on the path of requests is collected in idle moments, and not while somebody waits.

Python's collector stops a process whenever enough objects were made, at the worst of moments: while many
requests are being served. So it is off in every process that serves. What is there when serving begins is
frozen, requests leave no cycles behind, and what other things leave is collected by hand.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

WORTH_IT = 5_000  # new objects from which an idle moment is used: half a millisecond's work
# New objects that are collected even while requests are being served (about 20 ms): so many can only be
# garbage, and would otherwise become all of the memory.
TOO_MANY = 200_000


class GarbageKeeper:
    """The garbage keeper counts every collection of this process by its moment: `idle`, or `busy`."""

    def __init__(self, pile: Callable[[], int] | None = None) -> None:
        self._pile = pile or (lambda: gc.get_count()[0])  # containers made since the last collection
        self.collections = {"idle": 0, "busy": 0}
        self._idle = False

    def hold(self) -> None:
        """Turn the collector off, and take all there is for needed until there is time to `settle`."""
        gc.disable()
        gc.freeze()
        if self._saw not in gc.callbacks:
            gc.callbacks.append(self._saw)

    def settle(self) -> None:
        """Collect from all there is; what is then alive stays, and is not looked at ever again."""
        gc.unfreeze()
        self._collect()
        self.hold()

    @property
    def worth_it(self) -> bool:
        return self._pile() >= WORTH_IT

    def idle_moment(self) -> None:
        """Collect garbage if there is enough: nobody waits for this process now."""
        if self.worth_it:
            self._collect()

    def busy_moment(self) -> None:
        if self._pile() >= TOO_MANY:
            gc.collect()

    def _collect(self) -> None:
        self._idle = True
        gc.collect()
        self._idle = False

    def _saw(self, phase: str, _: dict[str, Any]) -> None:
        if phase == "start":
            self.collections["idle" if self._idle else "busy"] += 1
