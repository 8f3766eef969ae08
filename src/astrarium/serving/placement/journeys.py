"""The way of each request: when it came to each stage of its path and when it left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from astrarium.core.units import Time
from astrarium.serving.placement.plan import Replica
from astrarium.serving.placement.problem import Requests

NEVER: Time = -1
Instants = NDArray[np.int64]


@dataclass(slots=True, eq=False)
class Batch:
    """Requests that stay together. It was *complete* when nobody else was to join, *here* when it came to the
    queue of its replica, and takes *alone* without company. *stays*: when it began at each stage and left."""

    members: list[int]
    complete: Time
    here: Time = NEVER
    start: Time = NEVER
    done: Time = NEVER
    alone: Time = 0
    transfer: Time = 0
    reply: Time = 0
    replica: Replica | None = None
    stays: list[tuple[Time, Time]] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Journeys:
    """Arrays by request, in nanoseconds; `answered` is NEVER for those that were dropped, and then nothing
    else is told of them. Without a path, `routed` is `asked`, and `moved` and `here` are `ready`."""

    model: NDArray[np.int64]
    asked: Instants  # the client sent it
    routed: Instants  # the router, or the queue of a replica, has it
    ready: Instants  # its batch is complete
    moved: Instants  # the node has it
    here: Instants  # its replica's queue has it
    start: Instants
    done: Instants
    answered: Instants  # the client has the answer
    alone: Instants  # what its batch takes without company, all stages together
    batch: NDArray[np.int64]

    @property
    def latency(self) -> Instants:
        return self.answered - self.asked


def journeys(requests: Requests, batches: Sequence[Batch], client: Instants) -> Journeys:
    """*client* is how long each request takes to the router."""
    asked = np.array(requests.times, dtype=np.int64)
    routed = asked + client
    sizes = np.array([len(batch.members) for batch in batches], dtype=np.int64)
    members = np.array([number for batch in batches for number in batch.members], dtype=np.int64)

    def spread(values: Sequence[Time]) -> Instants:
        found = np.full(len(asked), NEVER, dtype=np.int64)
        found[members] = np.repeat(np.array(values, dtype=np.int64), sizes)
        return found

    start, done = spread([batch.start for batch in batches]), spread([batch.done for batch in batches])
    # Who joins a batch after the oldest has waited enough waits for nobody but the replica.
    ready = np.minimum(start, np.maximum(spread([batch.complete for batch in batches]), routed))
    return Journeys(
        model=np.array(requests.models, dtype=np.int64),
        asked=asked,
        routed=routed,
        ready=ready,
        moved=ready + spread([batch.transfer for batch in batches]),
        here=np.maximum(ready, spread([batch.here for batch in batches])),
        start=start,
        done=done,
        answered=np.where(done == NEVER, NEVER, done + spread([batch.reply for batch in batches])),
        alone=spread([batch.alone for batch in batches]),
        batch=spread(sizes.tolist()),
    )
