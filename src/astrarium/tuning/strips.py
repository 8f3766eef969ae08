"""GPUs are strips into which trials are packed, as the dissertation sees it: rectangles of width and time."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from astrarium.tuning.runtime import Place, Width


class Strips:
    """Strips record which trial holds how much of which GPU, and how much of each is free."""

    def __init__(self) -> None:
        self.holders: dict[int, dict[int, Fraction]] = {}  # by GPU: the share of each trial

    def change(self, gpus: Iterable[int]) -> set[int]:
        """Replace the GPUs by these, and return the trials that were on GPUs that are gone."""
        kept = {gpu: self.holders.get(gpu, {}) for gpu in gpus}
        stranded = {trial for gpu in self.holders.keys() - kept.keys() for trial in self.holders[gpu]}
        self.holders = kept
        for trial in stranded:
            self.leave(trial)
        return stranded

    @property
    def idle(self) -> list[int]:
        return [gpu for gpu, holders in self.holders.items() if not holders]

    def free_share(self, gpu: int, but: int | None = None) -> Fraction:
        """Return the free share of a GPU; the share of the trial *but* counts as free."""
        return 1 - sum((share for trial, share in self.holders[gpu].items() if trial != but), Fraction(0))

    def fits(self, trial: int, place: Place) -> bool:
        there = all(gpu in self.holders for gpu in place.gpus)
        return there and all(self.free_share(gpu, trial) >= place.share for gpu in place.gpus)

    def take(self, trial: int, place: Place) -> None:
        """Give the trial this place in addition to what it has: until it has moved, both are its own."""
        for gpu in place.gpus:
            held = self.holders[gpu]
            held[trial] = max(held.get(trial, Fraction(0)), place.share)

    def settle(self, trial: int, place: Place) -> None:
        """Give the trial this place and nothing else."""
        self.leave(trial)
        self.take(trial, place)

    def leave(self, trial: int) -> None:
        for holders in self.holders.values():
            holders.pop(trial, None)

    def find(self, width: Width, trial: int) -> Place | None:
        """Return a place of that width for the trial, which may keep what it has; None if nothing so large
        is free."""
        return self._part(width.denominator, trial) if width < 1 else self._whole(int(width), trial)

    def _part(self, parts: int, trial: int) -> Place | None:
        """Return a share of the GPU on which the least stays free, to keep whole GPUs for others."""
        share = Fraction(1, parts)
        free = {gpu: self.free_share(gpu, trial) for gpu in self.holders}
        fitting = [gpu for gpu in free if free[gpu] >= share]
        if not fitting:
            return None
        least_free = min(fitting, key=lambda gpu: (free[gpu], trial not in self.holders[gpu], gpu))
        return Place((least_free,), parts)

    def _whole(self, count: int, trial: int) -> Place | None:
        mine = [gpu for gpu, holders in self.holders.items() if set(holders) == {trial}]
        free = sorted([*mine, *self.idle], key=lambda gpu: (gpu not in mine, gpu))[:count]
        return Place(tuple(sorted(free))) if len(free) == count else None
