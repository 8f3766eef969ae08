"""Which machine takes which piece: those without a choice, then the largest, where it fits most tightly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from astrarium.cluster.auction.capacity import Need
from astrarium.cluster.auction.goods import MachineClass

STEPS = 100  # back and forth; after that, what is next in value is tried instead


class Packed(NamedTuple):
    """Positions of machines for each need, one for each of its pieces. None: they do not fit, unless it was
    given up."""

    machines: list[list[int]] | None
    given_up: bool = False


def pack(needs: Sequence[Need], counts: Sequence[int], classes: Sequence[MachineClass]) -> Packed:
    choice = [sum(len(classes[each].members) for each in need.classes) for need in needs]
    order = sorted(range(len(needs)), key=lambda n: (choice[n] > 1, -needs[n].gpus, choice[n], n))
    pieces = [number for number in order for _ in range(counts[number])]
    return _Packer(needs, pieces, classes).packed()


class _Packer:
    def __init__(self, needs: Sequence[Need], pieces: list[int], classes: Sequence[MachineClass]) -> None:
        self._needs, self._pieces = needs, pieces
        self._machines = [position for each in classes for position in each.members]
        self._class_of = [number for number, each in enumerate(classes) for _ in each.members]
        self._room = [classes[number].free for number in self._class_of]
        self._where: list[int] = []
        self._most = len(pieces) + STEPS
        self._hopeless: set[tuple[int, ...]] = set()

    def packed(self) -> Packed:
        steps = self._place_all()
        if len(self._where) < len(self._pieces):
            return Packed(None, given_up=steps > self._most)
        machines: list[list[int]] = [[] for _ in self._needs]
        for piece, machine in zip(self._pieces, self._where, strict=True):
            machines[piece].append(self._machines[machine])
        return Packed(machines)

    def _place_all(self) -> int:
        """Depth first without recursion: pieces may be many. `tries` has what is left to try for each."""
        tries, steps = [self._choices()], 0
        while len(self._where) < len(self._pieces):
            steps += 1
            if not tries[-1]:
                self._hopeless.add(self._position())
                tries.pop()
                if not tries or steps > self._most:
                    return steps
                self._take_back()
            else:
                self._put(tries[-1].pop())
                tries.append(self._choices())
        return steps

    def _choices(self) -> list[int]:
        """The last is tried first: the machine with the least room. Of machines alike, one is enough."""
        if len(self._where) == len(self._pieces) or (self._hopeless and self._position() in self._hopeless):
            return []
        need = self._needs[self._pieces[len(self._where)]]
        alike: dict[tuple[int, int], int] = {}
        for machine, (number, room) in enumerate(zip(self._class_of, self._room, strict=True)):
            if room >= need.gpus and number in need.classes:
                alike.setdefault((room, number), machine)
        return [machine for _, machine in sorted(alike.items(), reverse=True)]

    def _position(self) -> tuple[int, ...]:
        """What is left to place, and the room by class: which machine of a class has it is all the same."""
        rooms = sorted(zip(self._class_of, self._room, strict=True))
        return (len(self._where), *(number for pair in rooms for number in pair))

    def _put(self, machine: int) -> None:
        self._room[machine] -= self._needs[self._pieces[len(self._where)]].gpus
        self._where.append(machine)

    def _take_back(self) -> None:
        machine = self._where.pop()
        self._room[machine] += self._needs[self._pieces[len(self._where)]].gpus
