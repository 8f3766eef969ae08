"""An auction sells the free GPUs of machines; machines that are alike for all who bid are one class."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from astrarium.cluster.machines import Floor


class FreeMachine(NamedTuple):
    """A machine with free GPUs, numbered over the cluster. *slots* has the slot of each, if it matters which
    of them lie closest to each other."""

    id: int
    gpus: tuple[int, ...]
    rack: int = 0
    slots: tuple[int, ...] = ()

    @property
    def free(self) -> int:
        return len(self.gpus)

    def ordered(self) -> list[int]:
        """Return the GPUs slot by slot, the fullest slot first, so that a piece breaks few."""
        slots = self.slots or (0,) * len(self.gpus)
        free_in = {slot: slots.count(slot) for slot in slots}
        return [
            gpu
            for _, _, gpu in sorted((-free_in[s], s, gpu) for s, gpu in zip(slots, self.gpus, strict=True))
        ]


class MachineClass(NamedTuple):
    """Machines that are alike for all who bid; `members` are positions among the goods."""

    free: int
    rack: int | None  # None: racks do not matter
    machine: int | None  # named by somebody, so like no other
    members: tuple[int, ...]


def free_machines(floor: Floor, gpus: Iterable[int]) -> list[FreeMachine]:
    """Return the goods that these free GPUs of the floor make, in the order of racks and machines."""
    by_machine: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for gpu in gpus:
        rack, machine, slot = floor.place_of(gpu)
        by_machine.setdefault((rack, machine), []).append((gpu, slot))
    return [
        FreeMachine(machine, tuple(g for g, _ in sorted(own)), rack, tuple(s for _, s in sorted(own)))
        for (rack, machine), own in sorted(by_machine.items())
    ]


def classes(goods: Sequence[FreeMachine], racks_matter: bool, named: Iterable[int]) -> list[MachineClass]:
    """Return machines by class: as many free GPUs, in the same rack if that matters, named by no bid."""
    special = set(named)
    members: dict[tuple[int, int | None, int | None], list[int]] = {}
    for position, machine in enumerate(goods):
        if machine.free:
            key = (
                machine.free,
                machine.rack if racks_matter else None,
                machine.id if machine.id in special else None,
            )
            members.setdefault(key, []).append(position)
    return [MachineClass(*key, tuple(own)) for key, own in members.items()]
