"""A bracket that runs beside others: what its rung still waits for, and the part of it that nobody was asked
for yet."""

from __future__ import annotations

from contextlib import suppress

from astrarium.tuning.searching import Course, Results, Want, Wanted


class Begun:
    def __init__(self, course: Course) -> None:
        self._course = course
        self.waiting: list[Want] = []
        self.missing: set[int] = set()
        self._next(next(course))

    @property
    def running(self) -> int:
        return len(self.missing) - len(self.waiting)

    def asked(self) -> list[Want]:
        """All that is left of the rung."""
        found, self.waiting = self.waiting, []
        return found

    def heard(self, results: Results) -> None:
        """With the last of a rung, the next one begins."""
        mine = {candidate: value for candidate, value in results.items() if candidate in self.missing}
        self._results |= mine
        self.missing -= mine.keys()
        if mine and not self.missing:
            with suppress(StopIteration):
                self._next(self._course.send(self._results))

    def _next(self, wanted: Wanted) -> None:
        self.waiting = list(wanted.trials)
        self.missing = {want.candidate for want in wanted.trials}
        self._results: dict[int, float | None] = {}
