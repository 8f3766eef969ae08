"""SM utilization is how much of a GPU kernels use, by their launch configurations and over a whole batch.

Elvinger's thesis, section 5.3. A kernel's SM utilization is the share of the SMs that its blocks need at
once, at most 1. Four bounds say how many of its blocks an SM holds: threads, registers, shared memory, and
blocks as such. Of a model, either the highest moment counts (Usher takes the achieved occupancy so), or the
average over the whole time, pauses between kernels included.

Settled by us: kernels that overlap add up to 1 at the most, because no GPU has more than all its SMs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

import msgspec

from astrarium.core.errors import InputError
from astrarium.core.quantities import Time

KIB = 1024


class SmLimits(msgspec.Struct, frozen=True):
    """The limits of a GPU: its SMs, and what one SM holds at once. Shared memory is in bytes."""

    sms: int
    threads: int
    registers: int
    shared_memory: int
    blocks: int


V100 = SmLimits(sms=80, threads=2048, registers=65_536, shared_memory=96 * KIB, blocks=32)


class Launch(msgspec.Struct, frozen=True):
    """A launch is a kernel's launch configuration, as a trace of the GPU has it."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    registers_per_thread: int = 0
    static_shared: int = 0
    dynamic_shared: int = 0

    @property
    def blocks(self) -> int:
        return prod(self.grid)

    @property
    def threads_per_block(self) -> int:
        return prod(self.block)


class Busy(msgspec.Struct, frozen=True):
    """A kernel used *share* of the GPU from *start* to *end*: achieved occupancy, or SM utilization."""

    start: Time
    end: Time
    share: float


def block_bounds(launch: Launch, limits: SmLimits) -> dict[str, int]:
    """Return how many blocks an SM holds at once, by each of its four limits."""
    threads = launch.threads_per_block
    if min(*launch.grid, *launch.block) < 1:
        raise InputError("launch", launch, "grids and blocks of at least 1 in each dimension")
    return {
        "threads": limits.threads // threads,
        "registers": _bound(limits.registers, threads * launch.registers_per_thread, limits.blocks),
        "shared memory": _bound(
            limits.shared_memory, launch.static_shared + launch.dynamic_shared, limits.blocks
        ),
        "blocks": limits.blocks,
    }


def blocks_per_sm(launch: Launch, limits: SmLimits) -> int:
    bounds = block_bounds(launch, limits)
    tightest = min(bounds, key=lambda name: bounds[name])
    if bounds[tightest] < 1:
        raise InputError("launch", launch, f"a block within the {tightest} of one SM")
    return bounds[tightest]


def sms_needed(launch: Launch, limits: SmLimits) -> int:
    """Return the SMs that all blocks need to run at once; may be more than there are."""
    return -(-launch.blocks // blocks_per_sm(launch, limits))


def sm_utilization(launch: Launch, limits: SmLimits) -> float:
    return min(1.0, sms_needed(launch, limits) / limits.sms)


def highest_share(kernels: Sequence[Busy]) -> float:
    """Return the share at the busiest moment: Usher's requirement, with the achieved occupancy as *share*."""
    return max((share for _, share in _intervals(kernels)), default=0.0)


def weighted_share(kernels: Sequence[Busy]) -> float:
    """Return the mean share from the first start to the last end: weighted occupancy or SM utilization."""
    intervals = _intervals(kernels)
    whole = sum(length for length, _ in intervals)
    return sum(length * share for length, share in intervals) / whole if whole else 0.0


def _bound(limit: int, needed: int, otherwise: int) -> int:
    """Return how many blocks a resource allows; one that a block does not need bounds nothing."""
    return limit // needed if needed else otherwise


def _intervals(kernels: Sequence[Busy]) -> list[tuple[Time, float]]:
    """Yield length and share of every stretch in which no kernel starts or ends."""
    for kernel in kernels:
        if kernel.end < kernel.start or kernel.share < 0:
            raise InputError("kernels", kernel, "an end after the start, and a share of at least 0")
    edges = sorted({kernel.start for kernel in kernels} | {kernel.end for kernel in kernels})
    return [
        (end - start, min(1.0, sum(each.share for each in kernels if each.start < end and each.end > start)))
        for start, end in pairwise(edges)
    ]
