"""The path of a request leads from a client to a GPU and back, as in Elvinger's thesis (chapter 4).

Client → router → network → node → queue of a worker → GPU → network → client. The router makes batches, for
one replica of a model after the other: each leaves when it has the replica's size, or when its first request
has waited for MAX_WAIT_TIME. The network delays a batch as a whole; any number are on their way at a time, as
the thesis's router sends without waiting. A worker runs its batches as they were made, one after the other.

All before the queues follows from the arrivals alone, so that no events are needed for it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle

import msgspec
import numpy as np
from numpy.typing import NDArray

from astrarium.core.quantities import MILLISECOND, Time
from astrarium.placement.plan import Replica
from astrarium.placement.problem import PlacementRequests

NEVER: Time = -1
STAGES = ("client", "gather", "transfer", "node", "queue", "execution", "reply")
Instants = NDArray[np.int64]


@dataclass(slots=True, eq=False)
class BatchJourney:
    """A batch's journey: when it was *complete*, came to its replica's queue (*here*), and began each stage.

    *stays*: when it began at each stage and left."""

    members: list[int]
    complete: Time
    here: Time = NEVER
    start: Time = NEVER
    done: Time = NEVER
    transfer: Time = 0
    reply: Time = 0
    replica: Replica | None = None
    stays: list[tuple[Time, Time]] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Journeys:
    """Journeys are arrays by request: when each came to every stage of its path, in nanoseconds.

    `answered` is NEVER for dropped requests, whose other instants mean nothing. Without a path, `routed` is
    `asked`, and `moved` and `here` are `ready`.
    """

    model: NDArray[np.int64]
    asked: Instants  # the client sent it
    routed: Instants  # the router, or the queue of a replica, has it
    ready: Instants  # its batch is complete
    moved: Instants  # the node has it
    here: Instants  # its replica's queue has it
    start: Instants
    done: Instants
    answered: Instants  # the client has the answer
    batch: NDArray[np.int64]

    @property
    def latency(self) -> Instants:
        return self.answered - self.asked

    def stages(self, on_path: bool) -> dict[str, Instants]:
        """Return how long each stage took, in the order of the way; without a path there are only three."""
        ends = (self.routed, self.ready, self.moved, self.here, self.start, self.done, self.answered)
        legs = zip(STAGES, (self.asked, *ends[:-1]), ends, strict=True)
        took = {name: end - begin for name, begin, end in legs}
        return {name: took[name] for name in (STAGES if on_path else ("gather", "queue", "execution"))}


def journeys(requests: PlacementRequests, batches: Sequence[BatchJourney], client: Instants) -> Journeys:
    """Return the journeys of requests in these batches; *client* is each request's time to the router."""
    asked = np.array(requests.times, dtype=np.int64)
    routed = asked + client
    sizes = np.array([len(batch.members) for batch in batches], dtype=np.int64)
    members = np.array([number for batch in batches for number in batch.members], dtype=np.int64)

    def spread(values: Sequence[Time]) -> Instants:
        instants = np.full(len(asked), NEVER, dtype=np.int64)
        instants[members] = np.repeat(np.array(values, dtype=np.int64), sizes)
        return instants

    start = spread([batch.start for batch in batches])
    done = spread([batch.done for batch in batches])
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
        batch=spread(sizes.tolist()),
    )


class Delay(msgspec.Struct, frozen=True):
    """A message's delay is *fixed*, and more for each request and each byte in it."""

    fixed: Time = 0
    per_request: Time = 0
    per_byte: float = 0.0

    def of(self, requests: int, size: int = 0) -> Time:
        return self.fixed + requests * self.per_request + round(size * self.per_byte)


class Payload(msgspec.Struct, frozen=True):
    """A payload is the bytes of one request and of its answer."""

    input: int = 0
    output: int = 0


class Path(msgspec.Struct, frozen=True):
    """A path has delays: *client* to the router, *transfer* to a node, *node* to a worker's queue, *reply*.

    *max_wait* is the thesis's MAX_WAIT_TIME. *payloads* are by the name of a model.
    """

    max_wait: Time = 100 * MILLISECOND
    client: Delay = Delay()
    transfer: Delay = Delay()
    node: Delay = Delay()
    reply: Delay = Delay()
    payloads: Mapping[str, Payload] = {}

    def payload(self, name: str) -> Payload:
        return self.payloads.get(name, Payload())


def routed(
    path: Path, name: str, numbers: Sequence[int], instants: Sequence[Time], sizes: Sequence[int]
) -> Iterator[tuple[int, BatchJourney]]:
    """Return the batches that the router makes for a model, each with the place of its replica.

    Requests *numbers* reach the router at *instants*; *sizes* are the largest batches of the replicas.
    """
    payload = path.payload(name)
    turns = cycle(enumerate(sizes))
    first = 0
    while first < len(instants):
        place, size = next(turns)
        due = instants[first] + path.max_wait
        last = min(first + size, len(instants), bisect_right(instants, due, lo=first))
        complete = instants[last - 1] if last - first == size else due
        count = last - first
        transfer = path.transfer.of(count, count * payload.input)
        here = complete + transfer + path.node.of(count, count * payload.input)
        reply = path.reply.of(count, count * payload.output)
        yield place, BatchJourney(list(numbers[first:last]), complete, here, transfer=transfer, reply=reply)
        first = last
