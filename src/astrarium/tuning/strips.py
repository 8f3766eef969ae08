"""Who has how much of which GPU, and where there is room. (The dissertation sees GPUs as strips that trials,
as rectangles, are packed into.)"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from astrarium.tuning.places import Place, Width


class Strips:
    def __init__(self) -> None:
        self.holders: dict[int, dict[int, Fraction]] = {}  # by GPU: the share of each trial

    def change(self, gpus: Iterable[int]) -> set[int]:
        """These are there from now on; the trials that were on others."""
        kept = {gpu: self.holders.get(gpu, {}) for gpu in gpus}
        stranded = {trial for gpu in self.holders.keys() - kept.keys() for trial in self.holders[gpu]}
        self.holders = kept
        for trial in stranded:
            self.leave(trial)
        return stranded

    @property
    def idle(self) -> list[int]:
        return [gpu for gpu, holders in self.holders.items() if not holders]

    def room(self, gpu: int, but: int | None = None) -> Fraction:
        """What is free of it, *but* one trial's share counted as free."""
        return 1 - sum((share for trial, share in self.holders[gpu].items() if trial != but), Fraction(0))

    def fits(self, trial: int, place: Place) -> bool:
        there = all(gpu in self.holders for gpu in place.gpus)
        return there and all(self.room(gpu, trial) >= place.share for gpu in place.gpus)

    def take(self, trial: int, place: Place) -> None:
        """In addition to what it has: until it has moved, both are its own."""
        for gpu in place.gpus:
            held = self.holders[gpu]
            held[trial] = max(held.get(trial, Fraction(0)), place.share)

    def settle(self, trial: int, place: Place) -> None:
        """That, and nothing else."""
        self.leave(trial)
        self.take(trial, place)

    def leave(self, trial: int) -> None:
        for holders in self.holders.values():
            holders.pop(trial, None)

    def find(self, width: Width, trial: int) -> Place | None:
        """A place of that width for the trial, which may keep what it has; None where there is no room."""
        return self._part(width.denominator, trial) if width < 1 else self._whole(int(width), trial)

    def _part(self, parts: int, trial: int) -> Place | None:
        """On the GPU on which the least stays free: whole ones are kept for those who need them."""
        share = Fraction(1, parts)
        rooms = [(self.room(gpu, trial), trial not in self.holders[gpu], gpu) for gpu in self.holders]
        fitting = [each for each in rooms if each[0] >= share]
        return Place((min(fitting)[2],), parts) if fitting else None

    def _whole(self, count: int, trial: int) -> Place | None:
        mine = [gpu for gpu, holders in self.holders.items() if set(holders) == {trial}]
        found = sorted([*mine, *self.idle], key=lambda gpu: (gpu not in mine, gpu))[:count]
        return Place(tuple(sorted(found))) if len(found) == count else None
