"""The clusters of Themis (Mahajan et al., NSDI 2020, section 6.1) have names in scenario files.

The machines that are printed for the simulator have 168 GPUs, not the 256 that it is said to have: with more
machines of 8 it has them.
"""

from __future__ import annotations

from astrarium.cluster.machines import Machine


def machines(
    kinds: tuple[tuple[int, int, int], ...], racks: int = 1, network: str = "k80"
) -> tuple[Machine, ...]:
    """Return so many machines of each of *kinds*, with so many GPUs in slots of so many, over racks in
    turn."""
    shapes = [(gpus, slot) for count, gpus, slot in kinds for _ in range(count)]
    return tuple(Machine(id_, gpus, id_ % racks, slot, network) for id_, (gpus, slot) in enumerate(shapes))


MACHINES = {
    "themis-testbed": machines(((8, 2, 2), (12, 4, 2))),
    "themis-simulator": machines(((27, 8, 2), (6, 4, 1), (16, 1, 1)), racks=4),
    "themis-printed": machines(((16, 8, 2), (6, 4, 1), (16, 1, 1)), racks=4),
    "themis-truth-telling": machines(((1, 8, 2), (28, 2, 2))),
}
