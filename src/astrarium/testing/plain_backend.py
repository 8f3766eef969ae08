"""Lanes without a GPU: jobs take their turns, nothing is measured, and nobody runs where they should not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from astrarium.device.live.backend import Excess, Needs, Reading, Turn

TYPICAL = Needs(persistent=5, ephemeral=40, iteration=1000)


class PlainLaneBackend:
    """Every job is taken to need as much as *needs* says; what a turn shows beyond that is scripted."""

    def __init__(self, capacity: int = 100, needs: Needs = TYPICAL) -> None:
        self.capacity = capacity
        self.needs = needs
        self.turns: list[Turn] = []
        self.failed: list[str] = []  # errors that ended a turn
        self.renewed: list[int] = []
        self.closed: list[int] = []
        self.kept: list[object] = []
        self.excess: dict[int, Excess] = {}  # by the number of the turn
        self._inside: dict[int, int] = {}
        self._allocated = 0
        self._thread_state = threading.local()
        self._lock = threading.Lock()

    @contextmanager
    def job_thread(self) -> Iterator[None]:
        """What a job makes is counted at its first iteration."""
        self._thread_state.made = 0
        try:
            yield
        finally:
            self._allocated -= self._thread_state.made

    def begin(self, turn: Turn) -> None:
        with self._lock:
            assert not self._inside.get(turn.lane), "two iterations in one lane"
            self._inside[turn.lane] = 1
            self._thread_state.turn = len(self.turns)
            self.turns.append(turn)

    def end(self, turn: Turn, error: BaseException | None) -> Excess | None:
        with self._lock:
            self._inside[turn.lane] -= 1
        if error is not None:
            self.failed.append(str(error))
        return self.excess.get(self._thread_state.turn)

    def took(self) -> None:
        """As long as the turn was."""

    @contextmanager
    def measured(self) -> Iterator[Callable[[], Reading]]:
        assert not any(self._inside.values()), "measured while others ran"
        before = self._allocated
        self._allocated += self.needs.persistent - self._thread_state.made
        self._thread_state.made = self.needs.persistent
        peak = self._allocated + self.needs.ephemeral
        yield lambda: Reading(before, self._allocated, peak, self.needs.iteration)

    def allocated(self) -> int:
        return self._allocated

    def keep(self, value: object) -> None:
        self.kept.append(value)

    def renew(self, lane: int) -> None:
        self.renewed.append(lane)

    def close(self, lane: int) -> None:
        self.closed.append(lane)
