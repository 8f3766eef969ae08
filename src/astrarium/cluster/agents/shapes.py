"""How a number of GPUs lies on machines, as far as it matters for speed, without saying which they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from astrarium.cluster.machines import Floor, Spread


class Part(NamedTuple):
    """GPUs on one machine. *rack* None: in any."""

    gpus: int
    rack: int | None = None


class Shape(NamedTuple):
    """Parts, the largest first. *slot*: so many GPUs of a machine lie closest to each other."""

    parts: tuple[Part, ...]
    slot: int = 1

    @property
    def gpus(self) -> int:
        return sum(part.gpus for part in self.parts)

    def spread(self, size: int) -> Spread:
        """Of so many of its GPUs, as close as it has them."""
        if not self.parts or size <= min(self.slot, self.parts[0].gpus):
            return Spread.SLOT
        if size <= self.parts[0].gpus:
            return Spread.MACHINE
        return _apart(self.parts)


def shape(parts: Iterable[Part], slot: int = 1) -> Shape:
    return Shape(tuple(sorted(parts, key=_largest_first)), slot)


def held(floor: Floor, gpus: Iterable[int]) -> dict[int, Part]:
    """By machine."""
    found: dict[int, Part] = {}
    for gpu in gpus:
        rack, machine, _ = floor.place_of(gpu)
        found[machine] = Part(found[machine].gpus + 1 if machine in found else 1, rack)
    return found


def spreads(sizes: Sequence[int], whole: Shape) -> list[Spread]:
    """Of jobs of these sizes at the same time: the largest first, each where it fits most tightly."""
    if not sizes or max(sizes) <= 1:
        return [Spread.SLOT] * len(sizes)
    left = [part.gpus for part in whole.parts]
    found = [Spread.SLOT] * len(sizes)
    for job in sorted(range(len(sizes)), key=lambda job: -sizes[job]):
        found[job] = _take(left, sizes[job], whole)
    return found


def _take(left: list[int], size: int, whole: Shape) -> Spread:
    """From what is *left* of each part."""
    fitting = [place for place, room in enumerate(left) if room >= size]
    if fitting:
        left[min(fitting, key=lambda place: left[place])] -= size
        return Spread.SLOT if size <= whole.slot else Spread.MACHINE
    used = []
    for place in sorted(range(len(left)), key=lambda place: -left[place]):
        taken = min(left[place], size)
        if taken:
            left[place], size = left[place] - taken, size - taken
            used.append(whole.parts[place])
    return _apart(used)


def _apart(parts: Sequence[Part]) -> Spread:
    """A part that may lie in any rack is taken to lie in another."""
    racks = {part.rack for part in parts}
    if len(parts) > 1 and (len(racks) > 1 or None in racks):
        return Spread.CLUSTER
    return Spread.RACK if len(parts) > 1 else Spread.MACHINE


def _largest_first(part: Part) -> tuple[int, int]:
    return -part.gpus, -1 if part.rack is None else part.rack
