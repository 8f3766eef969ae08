"""Isolation keeps models that break workers again and again away from the others.

A model that did so twice in ten minutes is set apart: it moves into processes of its own, one on each GPU,
and can break nobody else's work any more.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from astrarium.core.quantities import SECOND, Time
from astrarium.server.control.repository import Entry, Repository
from astrarium.server.control.workers.blame import Blame
from astrarium.server.control.workers.fleet import Fleet

WINDOW = 600 * SECOND
# what a broken worker counts, and one that somebody outside may have ended
CERTAIN = 2
UNCERTAIN = 1
LIMIT = 2 * CERTAIN  # in that time; the first may be bad luck
log = logging.getLogger("astrarium.isolation")


class Separator(Protocol):
    """Who sends the batches of one model to workers of its own, one for each GPU."""

    def set_apart(self, model: int, workers: list[int]) -> None: ...


class Isolation:
    """Isolation keeps models that break workers away from the others. *changed* tells of a model's state."""

    def __init__(
        self,
        repository: Repository,
        fleet: Fleet,
        separator: Separator,
        clock: Callable[[], Time],
        changed: Callable[[], None],
    ) -> None:
        self._repository = repository
        self._fleet = fleet
        self._separator = separator
        self._clock = clock
        self._changed = changed
        self._strikes: list[deque[tuple[Time, int]]] = [deque() for _ in repository.entries]  # and weights
        fleet.blamed = self.blamed

    def blamed(self, blame: Blame, reason: str) -> None:
        """Note that a model has broken a worker, and act where it was one too many."""
        strikes = self._strikes[blame.model]
        now = self._clock()
        strikes.append((now, CERTAIN if blame.certain else UNCERTAIN))
        while strikes[0][0] < now - WINDOW:
            strikes.popleft()
        entry = self._repository.entries[blame.model]
        enough = sum(weight for _, weight in strikes) >= LIMIT
        if blame.calls and enough and entry.state == "READY" and self._has_others(entry):
            self._isolate(entry, f"it broke {len(strikes)} workers, the last one {reason}")

    def forgive(self, entry: Entry) -> None:
        """Forget what a model did; it is with the others again when it is loaded next."""
        self._strikes[entry.plan.index].clear()
        if self._fleet.is_apart(entry.plan.index):
            self._fleet.set_together(entry.plan.index)
            self._separator.set_apart(entry.plan.index, [])
            entry.apart = ""
            log.info("model %s is with the others again", entry.plan.name)

    def _has_others(self, entry: Entry) -> bool:
        """Whether there is anybody to keep the model away from, and it is not away already."""
        others = [one for one in self._repository.entries if one is not entry and one.state == "READY"]
        return bool(others) and not entry.apart

    def _isolate(self, entry: Entry, reason: str) -> None:
        shown = {"model": entry.plan.name, "reason": reason}
        entry.apart = reason
        entry.state = "LOADING"
        entry.reason = f"it moves to processes of its own: {reason}"
        self._separator.set_apart(entry.plan.index, self._fleet.set_apart(entry.plan.index))
        self._fleet.leave_shared(entry.plan.index)
        log.warning("model %(model)s is set apart in processes of its own: %(reason)s", shown, extra=shown)
        self._changed()
