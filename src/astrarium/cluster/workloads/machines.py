"""The clusters of Themis (Mahajan et al., NSDI 2020, section 6.1).

The testbed has 64 K80 GPUs in 20 virtual machines: 8 with 2, 12 with 4. The simulator is said to have 256
GPUs, but its footnote 6 lists 16 machines of 8, 6 of 4 and 16 of 1, which is 168: there is that one as it is
printed, and two nearby readings that make 256. Truth-telling has 64 GPUs: one machine of 8, the rest of 2.

Printed: machines of 8 have slots of 2 GPUs, machines of 4 slots of 1; racks exist. Assumed, because nobody
printed it:
- the testbed is one rack, since a cloud does not show its racks; so is the cluster of truth-telling;
- the simulator has 4 racks, with machines dealt to them in turn, so that each has its part of every kind;
- the slots of the testbed are the boards of a K80, which carry 2 GPUs each.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from astrarium.core.errors import InputError, one_of

Mix = Literal["printed", "more-of-8", "more-of-4"]

# How many machines have how many GPUs, in slots of how many.
MIXES: dict[str, tuple[tuple[int, int, int], ...]] = {
    "printed": ((16, 8, 2), (6, 4, 1), (16, 1, 1)),
    "more-of-8": ((27, 8, 2), (6, 4, 1), (16, 1, 1)),
    "more-of-4": ((16, 8, 2), (28, 4, 1), (16, 1, 1)),
}
TESTBED = ((8, 2, 2), (12, 4, 2))
TRUTH_TELLING = ((1, 8, 2), (28, 2, 2))
NETWORK = "k80"  # of themis_models.SLOWDOWNS
RACKS = 4


class DrawnMachine(msgspec.Struct, frozen=True):
    """*slot*: GPUs that are closest to each other. *network* names what connects the machine to others.

    The names are those of the cluster level's machine.
    """

    id: int
    gpus: int
    rack: int = 0
    slot: int = 0
    network: str = ""


def themis_testbed(network: str = NETWORK) -> tuple[DrawnMachine, ...]:
    return machines(TESTBED, racks=1, network=network)


def themis_simulator(
    mix: Mix = "more-of-8", racks: int = RACKS, network: str = NETWORK
) -> tuple[DrawnMachine, ...]:
    """`printed` has 168 GPUs, the others 256."""
    if mix not in MIXES:
        raise InputError("mix", mix, one_of(list(MIXES), mix))
    return machines(MIXES[mix], racks, network)


def themis_truth_telling(network: str = NETWORK) -> tuple[DrawnMachine, ...]:
    return machines(TRUTH_TELLING, racks=1, network=network)


def machines(
    kinds: tuple[tuple[int, int, int], ...], racks: int = 1, network: str = ""
) -> tuple[DrawnMachine, ...]:
    """For each of *kinds*, so many machines with so many GPUs in slots of so many; dealt to racks in turn."""
    if racks < 1:
        raise InputError("racks", racks, "at least 1 rack")
    for kind in kinds:
        if min(kind) < 1 or kind[1] % kind[2]:
            raise InputError("kinds", kind, "numbers of at least 1: machines, their GPUs, and a part as slot")
    shapes = [(gpus, slot) for count, gpus, slot in kinds for _ in range(count)]
    return tuple(
        DrawnMachine(id_, gpus, id_ % racks, slot, network) for id_, (gpus, slot) in enumerate(shapes)
    )


def gpus(cluster: tuple[DrawnMachine, ...]) -> int:
    return sum(machine.gpus for machine in cluster)
