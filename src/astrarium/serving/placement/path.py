"""The way from a client to a GPU and back, as Elvinger's thesis has it (chapter 4).

Client → router → network → node → queue of a worker → GPU → network → client. The router makes batches, for
one replica of a model after the other: each leaves when it has the replica's size, or when its first request
has waited for MAX_WAIT_TIME. The network delays a batch as a whole; any number are on their way at a time, as
the thesis's router sends without waiting. A worker runs its batches as they were made, one after the other.

All before the queues follows from the arrivals alone, so that no events are needed for it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle

import msgspec

from astrarium.core.units import MILLISECOND, Time
from astrarium.serving.placement.journeys import Batch


class Delay(msgspec.Struct, frozen=True):
    """Of a message: *fixed*, and more for each request and each byte in it."""

    fixed: Time = 0
    per_request: Time = 0
    per_byte: float = 0.0

    def of(self, requests: int, size: int = 0) -> Time:
        return self.fixed + requests * self.per_request + round(size * self.per_byte)


class Payload(msgspec.Struct, frozen=True):
    """Bytes of one request and of its answer."""

    input: int = 0
    output: int = 0


class Path(msgspec.Struct, frozen=True):
    """*max_wait* is the thesis's MAX_WAIT_TIME. *client* is from a client to the router, *transfer* from
    there to a node, *node* from the node to the queue of a worker, *reply* from the worker to the client.
    *payloads* are by the name of a model."""

    max_wait: Time = 100 * MILLISECOND
    client: Delay = Delay()
    transfer: Delay = Delay()
    node: Delay = Delay()
    reply: Delay = Delay()
    payloads: Mapping[str, Payload] = {}

    def payload(self, name: str) -> Payload:
        return self.payloads.get(name, Payload())

    def to_router(self, name: str) -> Time:
        return self.client.of(1, self.payload(name).input)


def routed(
    path: Path, name: str, numbers: Sequence[int], instants: Sequence[Time], sizes: Sequence[int]
) -> Iterator[tuple[int, Batch]]:
    """Batches of a model, each with the place of its replica. *instants* are those at which the requests
    *numbers* reach the router, *sizes* the largest batches of the replicas."""
    payload, turns, first = path.payload(name), cycle(enumerate(sizes)), 0
    while first < len(instants):
        place, size = next(turns)
        due = instants[first] + path.max_wait
        last = min(first + size, len(instants), bisect_right(instants, due, lo=first))
        complete = instants[last - 1] if last - first == size else due
        count = last - first
        transfer = path.transfer.of(count, count * payload.input)
        here = complete + transfer + path.node.of(count, count * payload.input)
        reply = path.reply.of(count, count * payload.output)
        yield place, Batch(list(numbers[first:last]), complete, here, transfer=transfer, reply=reply)
        first = last
