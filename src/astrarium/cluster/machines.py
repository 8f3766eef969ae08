"""Machines have GPUs, which lie in slots and racks.

GPUs are numbered over the whole cluster, in the order in which machines joined.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from itertools import groupby
from typing import NamedTuple

import msgspec

from astrarium.core.errors import BrokenBooks


class Machine(msgspec.Struct, frozen=True):
    """A machine has GPUs; *slot* of them are closest to each other, such as those of a switch (0: all are).

    *network* names what connects it to others: how much a model suffers from being spread depends on both.
    """

    id: int
    gpus: int
    rack: int = 0
    slot: int = 0
    network: str = ""


class Spread(IntEnum):
    """The spread of a set of GPUs is the smallest unit that holds all of them."""

    SLOT = 0
    MACHINE = 1
    RACK = 2
    CLUSTER = 3


class GpuLocation(NamedTuple):
    """Where a GPU lies: GPUs sorted by their locations lie together. Slots are numbered within a machine."""

    rack: int
    machine: int
    slot: int


class Floor:
    """The floor knows the machines that are there, and where each GPU lies, or lay when its machine left."""

    def __init__(self) -> None:
        self.machines: dict[int, Machine] = {}
        self.gpus_of: dict[int, tuple[int, ...]] = {}  # by machine: those that work
        self.size = 0  # GPUs that are there and work
        self._places: list[GpuLocation] = []  # of each GPU
        self._machines: list[int] = []  # of each GPU
        self._networks: dict[int, str] = {}
        self._firsts: dict[int, int] = {}  # the first GPU of each machine that there ever was

    @property
    def known(self) -> int:
        """Return how many GPUs there ever were: the number of the next one."""
        return len(self._places)

    def join(self, machine: Machine) -> tuple[int, ...]:
        if machine.id in self._networks:
            raise BrokenBooks(
                f"machine {machine.id} has been here before: one that comes back has a new number"
            )
        first = len(self._places)
        slot = machine.slot or machine.gpus
        self._places += [
            GpuLocation(machine.rack, machine.id, index // slot) for index in range(machine.gpus)
        ]
        self._machines += [machine.id] * machine.gpus
        self.machines[machine.id] = machine
        self._networks[machine.id] = machine.network
        self._firsts[machine.id] = first
        self.gpus_of[machine.id] = tuple(range(first, first + machine.gpus))
        self.size += machine.gpus
        return self.gpus_of[machine.id]

    def leave(self, machine: int) -> tuple[int, ...]:
        """Remove a machine and return its GPUs; none where it had gone before."""
        gone = self.gpus_of.pop(machine) if self.machines.pop(machine, None) else ()
        self.size -= len(gone)
        return gone

    def fail(self, gpu: int) -> bool:
        """Take a GPU out of use; return whether it was in use."""
        if not self.has(gpu) or gpu not in self.gpus_of[machine := self.machine_of(gpu)]:
            return False
        self.gpus_of[machine] = tuple(other for other in self.gpus_of[machine] if other != gpu)
        self.size -= 1
        return True

    def repair(self, gpu: int) -> None:
        """Take a GPU back into use that was out of use."""
        machine = self.machine_of(gpu)
        self.gpus_of[machine] = tuple(sorted((*self.gpus_of[machine], gpu)))
        self.size += 1

    def has(self, gpu: int) -> bool:
        """Return whether a GPU is there, whether it works or not."""
        return 0 <= gpu < len(self._places) and self.machine_of(gpu) in self.machines

    def place(self, gpu: int) -> tuple[int, int]:
        """Return the machine of a GPU, and its number as that machine counts."""
        machine = self.machine_of(gpu)
        return machine, gpu - self._firsts[machine]

    def all_of(self, machine: Machine) -> range:
        """Return the GPUs of a machine that is there or has been, those that do not work included."""
        first = self._firsts[machine.id]
        return range(first, first + machine.gpus)

    def machine_of(self, gpu: int) -> int:
        return self._machines[gpu]

    def place_of(self, gpu: int) -> GpuLocation:
        return self._places[gpu]

    def by_machine(self, gpus: Iterable[int]) -> dict[int, list[int]]:
        """Return each machine with those of these GPUs that it has, in order; a machine's GPUs have numbers
        that follow one another."""
        return {machine: list(own) for machine, own in groupby(sorted(gpus), self._machines.__getitem__)}

    def rack_of(self, machine: int) -> int:
        return self.machines[machine].rack

    def spread(self, gpus: Sequence[int]) -> Spread:
        if len(gpus) == 1:
            return Spread.SLOT
        places = {self._places[gpu] for gpu in gpus}
        if len(places) < 2:
            return Spread.SLOT
        if len({place.rack for place in places}) > 1:
            return Spread.CLUSTER
        return Spread.RACK if len({place.machine for place in places}) > 1 else Spread.MACHINE

    def network(self, gpus: Sequence[int]) -> str:
        """Return the network of the first of these GPUs: machines of a cluster usually have one network."""
        return self._networks[self._machines[gpus[0]]] if gpus else ""

    def closest_spread(self, count: int) -> Spread:
        """Return the smallest spread that so many GPUs could have."""
        return Spread.SLOT if count <= max(map(len, self.gpus_of.values()), default=0) else Spread.RACK

    def one_network(self) -> bool:
        return len(set(self._networks.values())) == 1
