"""A pattern is a number of GPUs in pieces of certain sizes.

An agent bids on patterns, and not on every subset of the GPUs that are offered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from astrarium.cluster.agents.layouts import GpuLayout, MachineGpus, gpu_layout
from astrarium.cluster.auction.bids import GpuPiece
from astrarium.cluster.auction.goods import FreeMachine
from astrarium.cluster.machines import Floor

FINE = 4  # numbers of GPUs up to here are all looked at, beyond it two for each doubling
BESIDE = 2  # machines on which an app has GPUs and wants more
SOME_RACK = -1  # one rack, whichever


class BidContext(NamedTuple):
    """The GPUs that are offered, by machine and rack, and those that the bidding app holds."""

    free: Mapping[int, int]  # by machine
    racks: Mapping[int, int]  # free GPUs of each
    slot: int
    held: Mapping[int, MachineGpus]

    @property
    def total(self) -> int:
        return sum(self.free.values())

    @property
    def largest(self) -> int:
        return max(self.free.values())

    def layout(self, pieces: Iterable[GpuPiece] = (), one_rack: bool = False) -> GpuLayout:
        """Return the layout of these pieces together with what the app holds."""
        parts = dict(self.held)
        loose = []
        for piece in pieces:
            if piece.machine is None:
                loose.append(MachineGpus(piece.gpus, self._rack(one_rack)))
            else:
                before = parts[piece.machine]
                parts[piece.machine] = MachineGpus(before.gpus + piece.gpus, before.rack)
        return gpu_layout([*parts.values(), *loose], self.slot)

    def _rack(self, one_rack: bool) -> int | None:
        if len(self.racks) == 1:
            return next(iter(self.racks))
        return SOME_RACK if one_rack else None


class Pattern(NamedTuple):
    """The sizes of the pieces that a number of GPUs comes in, in one rack or anywhere."""

    pieces: tuple[GpuPiece, ...]
    one_rack: bool = False


def bid_context(goods: Sequence[FreeMachine], floor: Floor, held: Mapping[int, MachineGpus]) -> BidContext:
    racks: dict[int, int] = {}
    for machine in goods:
        racks[machine.rack] = racks.get(machine.rack, 0) + machine.free
    slot = closest_slot(floor, [*held, *(machine.id for machine in goods)])
    return BidContext({machine.id: machine.free for machine in goods}, racks, slot, held)


def closest_slot(floor: Floor, machines: Iterable[int]) -> int:
    """Return how many GPUs lie in one slot on any of these machines."""
    return min(
        (floor.machines[machine].slot or floor.machines[machine].gpus for machine in machines), default=1
    )


def counts(most: int, useful: Callable[[int], int]) -> list[int]:
    """Return the numbers of GPUs that an agent bids on: those that the app would use in full."""
    return sorted({useful(count) for count in (*_steps(most), most)} - {0})


def _steps(most: int) -> Iterator[int]:
    count = 1
    while count < most:
        yield count
        count += 1 << count.bit_length() - 2 if count >= FINE else 1


def loose(count: int) -> Pattern:
    """Return the pattern that is easiest to have: single GPUs, anywhere."""
    return Pattern((GpuPiece(1),) * count)


def tighter(count: int, size: int, context: BidContext, racks_matter: bool) -> Iterator[Pattern]:
    """Yield patterns for jobs of *size* GPUs, each harder to have than those before."""
    size = min(size, count, context.largest)
    racks = racks_matter and len(context.racks) > 1 and max(context.racks.values()) >= count
    if racks:
        yield Pattern((GpuPiece(1),) * count, one_rack=True)
    for piece in (size // 2, size, min(count, context.largest)):
        if piece > 1:
            yield Pattern(_cut(count, piece))
            if racks and piece < count:
                yield Pattern(_cut(count, piece), one_rack=True)
    yield from _beside(count, size, context)


def _beside(count: int, size: int, context: BidContext) -> Iterator[Pattern]:
    """Yield patterns that lie on a machine where the app already is, with the rest in pieces."""
    homes = sorted(
        context.held.keys() & context.free.keys(), key=lambda machine: (-context.held[machine].gpus, machine)
    )
    for home in homes[:BESIDE]:
        there = min(count, context.free[home])
        yield Pattern((GpuPiece(there, machine=home), *_cut(count - there, size)))


def _cut(count: int, size: int) -> tuple[GpuPiece, ...]:
    """Return pieces of *size*, and the rest in powers of two: sizes that divide each other fit easily."""
    rest = count % size
    smaller = (1 << bit for bit in reversed(range(rest.bit_length())) if rest >> bit & 1)
    return tuple(GpuPiece(gpus) for gpus in (*[size] * (count // size), *smaller))
