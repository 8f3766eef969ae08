"""Places that are left for pieces still to come, by where these may go and by size.

A machine with so much room has room // s places of size s, and a piece takes at least gpus // s of them. Of
every set of classes that some need is confined to, no more places can be asked for than there are.
"""

from __future__ import annotations

from collections.abc import Sequence

from astrarium.cluster.auction.capacity import Need
from astrarium.cluster.auction.goods import MachineClass

Bin = tuple[int, int]  # room and class: machines of which both are the same are all the same


class Slack:
    """A list of numbers, one for each set and size: none may fall below 0."""

    def __init__(self, needs: Sequence[Need], classes: Sequence[MachineClass]) -> None:
        self._needs = needs
        self.bins: dict[Bin, int] = {
            (each.free, number): len(each.members) for number, each in enumerate(classes)
        }
        self._sets = sorted({frozenset(range(len(classes))), *(need.classes for need in needs)}, key=sorted)
        self._sizes = sorted({need.gpus for need in needs})
        self._changes: dict[tuple[int, Bin], list[tuple[int, int]]] = {}

    def start(self, counts: Sequence[int]) -> list[int]:
        """With nothing placed, and so many pieces of each need to come."""
        wanted = [(need, count) for need, count in zip(self._needs, counts, strict=True) if count]
        return [
            sum(count * (room // size) for (room, kind), count in self.bins.items() if kind in inside)
            - sum(count * (need.gpus // size) for need, count in wanted if need.classes <= inside)
            for inside in self._sets
            for size in self._sizes
        ]

    def change(self, number: int, bin_: Bin) -> list[tuple[int, int]]:
        """What becomes of it with a piece of a need in a bin: places in the list, and how much more."""
        known = self._changes.get((number, bin_))
        if known is None:
            known = self._changes[number, bin_] = self._found(self._needs[number], bin_)
        return known

    def _found(self, need: Need, bin_: Bin) -> list[tuple[int, int]]:
        room, kind = bin_
        found = []
        for outer, inside in enumerate(self._sets):
            mine = need.classes <= inside
            for inner, size in enumerate(self._sizes if kind in inside else ()):
                more = (need.gpus // size if mine else 0) - (room // size - (room - need.gpus) // size)
                if more:
                    found.append((outer * len(self._sizes) + inner, more))
        return found
