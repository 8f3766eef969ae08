"""A group runtime says which group gets a request, whether requests wait, and what the system adds."""

from __future__ import annotations

from typing import Literal

import msgspec

from astrarium.core.errors import InputError
from astrarium.core.quantities import MILLISECOND, SECOND, Time


class GroupRuntime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A runtime says how groups serve; by default as the authors' fast simulator, in whole nanoseconds.

    *dispatch*: to the group whose last stage is free first, or to the shortest queue (what the paper says).
    *another*: where one group would be late, the next is tried before the request is rejected.
    *order* and *max_batch*: requests wait, and the next batch is made when the first stage is free.
    *stage_overhead*: each stage takes longer by this share for every stage there is. *fixed_overhead* comes
    with every answer. Both are the authors' constants for what their system adds to its kernels.
    *clock*: whole nanoseconds, or seconds in double precision as the authors count. It matters: in their
    bursts many requests come within a nanosecond, and the order of the clocks decides which group is next.
    """

    dispatch: Literal["clock", "queue"] = "clock"
    another: bool = False
    order: Literal["arrival", "deadline"] = "arrival"
    max_batch: int = 1
    stage_overhead: float = 0.009
    fixed_overhead: Time = 11 * MILLISECOND
    clock: Literal["ns", "seconds"] = "ns"

    def __post_init__(self) -> None:
        if self.max_batch < 1:
            raise InputError("max_batch", self.max_batch, "at least 1")
        if self.waits and self.dispatch != "queue":
            raise InputError("dispatch", self.dispatch, "queue, where requests wait (deadlines or batches)")
        if self.waits and self.clock != "ns":
            raise InputError("clock", self.clock, "ns, where requests wait (deadlines or batches)")
        if self.stage_overhead < 0 or self.fixed_overhead < 0:
            raise InputError("overhead", (self.stage_overhead, self.fixed_overhead), "none below zero")

    @property
    def waits(self) -> bool:
        return self.order == "deadline" or self.max_batch > 1

    @property
    def unit(self) -> float:
        """Return the nanoseconds in one unit of the clock."""
        return 1 if self.clock == "ns" else SECOND

    @property
    def fixed(self) -> float:
        """Return the fixed overhead in units of the clock."""
        return self.fixed_overhead if self.clock == "ns" else self.fixed_overhead / SECOND


DEFAULT = GroupRuntime()
