"""A job as the device level knows it: memory that stays, memory of an iteration, and turns to take."""

from __future__ import annotations

import msgspec

from astrarium.core.units import Time


class Job(msgspec.Struct, frozen=True, gc=False):
    """`persistent` bytes stay from its admission to its end, `ephemeral` ones last as long as an iteration.

    `iteration` is what one takes alone on the GPU, `demand` the share of the GPU that it can use then.
    """

    id: int
    name: str
    persistent: int
    ephemeral: int
    iteration: Time
    iterations: int
    priority: int = 0  # the higher, the more important
    demand: float = 1.0

    @property
    def duration(self) -> Time:
        """Alone on the GPU, without a pause."""
        return self.iteration * self.iterations
