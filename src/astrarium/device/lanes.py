"""This module divides a GPU's memory (Yu's dissertation, section 2.3.3 and Algorithm 2.1).

Persistent memory grows from one end, lanes from the other. A lane is as large as the largest ephemeral need
of its jobs. At an iteration boundary nothing lies in a lane, so that making it smaller or larger, or moving
it, is free: that is all the defragmentation there is.

The safety condition: persistent memory of all jobs, and all lanes, fit into the GPU together. The printed
algorithm checks it where a lane is opened or resized; a job that joins a lane brings persistent memory too,
so it is checked there as well.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from astrarium.device.contract import NEW_LANE


@dataclass
class Lane:
    id: int
    base: int
    size: int
    jobs: dict[int, int] = field(default_factory=dict)  # the ephemeral memory of each

    @property
    def needed(self) -> int:
        return max(self.jobs.values(), default=0)

    @property
    def end(self) -> int:
        return self.base + self.size


class Layout:
    """The layout says where lanes and persistent memory are; *capacity* is in bytes."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.lanes: list[Lane] = []  # in the order of their addresses
        self.persistent: dict[int, int] = {}  # by job
        self._opened = 0
        self._settled = True  # there is nothing to close, and nothing to make smaller

    @property
    def free(self) -> int:
        """Return the free bytes between the last lane and persistent memory."""
        top = self.lanes[-1].end if self.lanes else 0
        return self.capacity - sum(self.persistent.values()) - top

    def lane_of(self, job: int) -> Lane | None:
        return next((lane for lane in self.lanes if job in lane.jobs), None)

    def lane(self, id_: int) -> Lane | None:
        return next((lane for lane in self.lanes if lane.id == id_), None)

    def find(self, persistent: int, ephemeral: int, busy: Collection[int] = ()) -> int | None:
        """Return a lane for a job that needs this much, NEW_LANE, or None. *busy* are lanes in the middle of
        an iteration: neither they nor those that lie beyond them can be made larger now (Algorithm 2.1)."""
        if persistent + ephemeral <= self.free:
            return NEW_LANE
        fitting = [lane for lane in self.lanes if lane.size >= ephemeral]
        if fitting and persistent <= self.free:
            return min(fitting, key=lambda lane: (lane.size, len(lane.jobs))).id
        return self._resizable(persistent, ephemeral, busy)

    def _resizable(self, persistent: int, ephemeral: int, busy: Collection[int]) -> int | None:
        for lane in sorted(self.lanes, key=lambda lane: lane.size):
            if self.fits(lane, persistent, ephemeral, busy):
                return lane.id
        return None

    def fits(self, lane: Lane, persistent: int, ephemeral: int, busy: Collection[int] = ()) -> bool:
        """Tell whether a job may join this lane, which grows where it is too small."""
        growth = max(0, ephemeral - lane.size)
        beyond = self.lanes[self.lanes.index(lane) :]
        movable = not growth or not any(other.id in busy for other in beyond)
        return movable and persistent + growth <= self.free

    def open(self, job: int, persistent: int, ephemeral: int) -> Lane:
        top = self.lanes[-1].end if self.lanes else 0
        lane = Lane(self._opened, top, ephemeral, {job: ephemeral})
        self._opened += 1
        self.lanes.append(lane)
        self.persistent[job] = persistent
        return lane

    def join(self, lane: Lane, job: int, persistent: int, ephemeral: int) -> None:
        growth = max(0, ephemeral - lane.size)
        lane.size += growth
        for other in self.lanes[self.lanes.index(lane) + 1 :]:
            other.base += growth
        lane.jobs[job] = ephemeral
        self.persistent[job] = persistent

    def change(self, job: int, persistent: int, ephemeral: int, busy: Collection[int] = ()) -> bool:
        """Change the needs of a job: its lane grows in place, or moves beyond all others. Return False, with
        nothing changed, where it does not fit."""
        lane = self.lane_of(job)
        assert lane is not None
        more = persistent - self.persistent[job]
        if not self.fits(lane, more, ephemeral, busy):
            size = max(lane.size, ephemeral)
            if lane.id in busy or more + size > self.free:
                return False
            lane.base = self.lanes[-1].end
            lane.size = size
            self.lanes.remove(lane)
            self.lanes.append(lane)
        self.join(lane, job, persistent, ephemeral)
        self._settled = False
        return True

    def leave(self, job: int) -> None:
        """Remove a job. Its persistent memory is free at once, its part of the lane at the next boundary."""
        del self.persistent[job]
        lane = self.lane_of(job)
        assert lane is not None
        del lane.jobs[job]
        self._settled = False

    def settle(self, busy: Collection[int] = ()) -> None:
        """Close lanes without jobs, and let those at a boundary shrink and close ranks."""
        if self._settled:  # as after nearly every iteration
            return
        self.lanes = [lane for lane in self.lanes if lane.jobs or lane.id in busy]
        self._settled = True
        end = 0
        for lane in self.lanes:
            if lane.id not in busy:
                lane.base = end
                lane.size = lane.needed
            self._settled &= bool(lane.jobs) and (lane.base, lane.size) == (end, lane.needed)
            end = lane.end

    def safe(self) -> bool:
        """Tell whether nothing overlaps, and every lane holds the largest iteration that may run in it."""
        ends = [0, *(lane.end for lane in self.lanes)]
        apart = all(lane.base >= end for lane, end in zip(self.lanes, ends, strict=False))
        return apart and self.free >= 0 and all(lane.needed <= lane.size for lane in self.lanes)
