"""The persistent memory of live jobs is estimated from what the device had while they were measured."""

from __future__ import annotations

from collections.abc import Mapping


class PersistentEstimates:
    """The estimates say how much persistent memory a live job has, by what was read while it was measured."""

    def __init__(self) -> None:
        self._guessed: dict[int, int] = {}  # of jobs that have not arrived yet
        self._surplus: dict[int, int] = {}  # beyond what a measured job was known to own, in order of time

    def guess(self, job: int, owned: int, allocated: int, arrived: int) -> int:
        """Estimate a job's persistent memory. *arrived* is that of all jobs that have arrived."""
        others = arrived + sum(size for other, size in self._guessed.items() if other != job)
        self._guessed[job] = max(owned, allocated - others)
        self._surplus[job] = self._guessed[job] - owned
        return self._guessed[job]

    def arrived(self, job: int, measured: bool) -> None:
        self._guessed.pop(job, None)
        if not measured:
            self._surplus.pop(job, None)

    def left(self, job: int) -> None:
        self._guessed.pop(job, None)
        self._surplus.pop(job, None)

    def mistaken(self, owned: int, allocated: int, persistent: Mapping[int, int]) -> dict[int, int]:
        """Return by how much jobs that have arrived are charged too much, when a job comes that owned this
        much before.

        *persistent* is the memory they are charged. Jobs that said what they need are not counted: they may
        be charged more than they have. What iterations have allocated just now makes it less, too.
        """
        measured = {job: size for job, size in persistent.items() if job in self._surplus}
        left = min(owned, sum(measured.values()) + sum(self._guessed.values()) + owned - allocated)
        cuts: dict[int, int] = {}
        for job in reversed(list(measured)):  # the last one was most likely measured meanwhile
            cut = min(max(0, left), self._surplus[job])
            if cut:
                cuts[job] = cut
                self._surplus[job] -= cut
                left -= cut
        return cuts
