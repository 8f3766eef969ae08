"""A layout says how many GPUs lie on how many machines, as far as it matters for speed, and not on which."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from astrarium.cluster.machines import Floor, Spread


class MachineGpus(NamedTuple):
    """A number of GPUs on one machine, in this rack or (None) in any."""

    gpus: int
    rack: int | None = None


class GpuLayout(NamedTuple):
    """How many GPUs lie on each machine, the most first; *slot* GPUs of a machine lie closest together."""

    parts: tuple[MachineGpus, ...]
    slot: int = 1

    @property
    def gpus(self) -> int:
        return sum(part.gpus for part in self.parts)

    def spread(self, size: int) -> Spread:
        """Return the spread of so many of these GPUs, taken as close together as they lie."""
        if not self.parts or size <= min(self.slot, self.parts[0].gpus):
            return Spread.SLOT
        if size <= self.parts[0].gpus:
            return Spread.MACHINE
        return _apart(self.parts)


def gpu_layout(parts: Iterable[MachineGpus], slot: int = 1) -> GpuLayout:
    """Return the layout of GPUs on these machines: the most first, then by rack."""
    ordered = sorted(parts, key=lambda part: (-part.gpus, -1 if part.rack is None else part.rack))
    return GpuLayout(tuple(ordered), slot)


def held(floor: Floor, gpus: Iterable[int]) -> dict[int, MachineGpus]:
    """Return how many of these GPUs each machine has."""
    by_machine: dict[int, MachineGpus] = {}
    for gpu in gpus:
        rack, machine, _ = floor.place_of(gpu)
        by_machine[machine] = MachineGpus(by_machine[machine].gpus + 1 if machine in by_machine else 1, rack)
    return by_machine


def spreads(sizes: Sequence[int], layout: GpuLayout) -> list[Spread]:
    """Return the spread of each of these jobs, placed the largest first, each where it fits most tightly."""
    if not sizes or max(sizes) <= 1:
        return [Spread.SLOT] * len(sizes)
    left = [part.gpus for part in layout.parts]
    spreads_found = [Spread.SLOT] * len(sizes)
    for job in sorted(range(len(sizes)), key=lambda job: -sizes[job]):
        spreads_found[job] = _take(left, sizes[job], layout)
    return spreads_found


def _take(left: list[int], size: int, layout: GpuLayout) -> Spread:
    """Take the GPUs of one job from what is *left* on each machine, and return their spread."""
    fitting = [place for place, free in enumerate(left) if free >= size]
    if fitting:
        left[min(fitting, key=lambda place: left[place])] -= size
        return Spread.SLOT if size <= layout.slot else Spread.MACHINE
    used = []
    for place in sorted(range(len(left)), key=lambda place: -left[place]):
        taken = min(left[place], size)
        if taken:
            left[place] -= taken
            size -= taken
            used.append(layout.parts[place])
    return _apart(used)


def _apart(parts: Sequence[MachineGpus]) -> Spread:
    """Return the spread over whole machines; one that may lie in any rack is taken to lie in another."""
    racks = {part.rack for part in parts}
    if len(parts) > 1 and (len(racks) > 1 or None in racks):
        return Spread.CLUSTER
    return Spread.RACK if len(parts) > 1 else Spread.MACHINE
