"""Jobs wait for their turns, each in its own thread."""

from __future__ import annotations

from queue import SimpleQueue

from astrarium.device.live.backend import Turn


class TurnGrants:
    """Jobs wait here until they are granted a turn, or refused one for a reason. While grants are *paused*,
    since a job is measured, turns are held back. All but the waiting itself is called with the driver's lock
    held."""

    def __init__(self) -> None:
        self.paused = False
        self.under_way: dict[int, Turn] = {}  # by job
        self._waiting: dict[int, SimpleQueue[Turn | str]] = {}  # by job
        self._held: list[Turn] = []

    def wait(self, job: int) -> SimpleQueue[Turn | str]:
        answer = self._waiting[job] = SimpleQueue()
        return answer

    @property
    def waiting(self) -> list[int]:
        return list(self._waiting)

    def grant(self, turn: Turn) -> None:
        if self.paused:
            self._held.append(turn)
        else:
            self._start(turn)

    def resume(self) -> None:
        self.paused = False
        held = self._held
        self._held = []
        for turn in held:
            self._start(turn)

    def refuse(self, job: int, reason: str) -> None:
        self._waiting.pop(job).put(reason)

    def refuse_all(self, reason: str) -> None:
        self._held.clear()
        for job in self.waiting:
            self.refuse(job, reason)

    def over(self, job: int) -> None:
        self.under_way.pop(job, None)

    def abandon(self, job: int) -> Turn | None:
        """Stop waiting; return the turn that the job had, or was to have."""
        self._waiting.pop(job, None)
        held = next((turn for turn in self._held if turn.job == job), None)
        self._held = [turn for turn in self._held if turn.job != job]
        return self.under_way.pop(job, held)

    def _start(self, turn: Turn) -> None:
        self.under_way[turn.job] = turn
        self._waiting.pop(turn.job).put(turn)
