"""The contract of serving policies: they hear a setup and events, and answer with actions."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Literal, TypeAlias

import msgspec

from astrarium.core.policy import SetTimer, TimerFired
from astrarium.core.quantities import FOREVER, Time

# Why a request was dropped. A policy may give reasons of its own.
EXPIRED = "expired"  # not even alone could it still be in time
SACRIFICED = "sacrificed"  # it could, but only by shrinking the batch of those behind it
UNSERVED = "unserved"  # the run ended before the policy decided


class Dispatch(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Send waiting requests of one model to a GPU as a batch; GPUs run their batches in order.

    The batch starts once its order and inputs have arrived and the GPU is free, and not before *start*.
    """

    gpu: int
    requests: tuple[int, ...]
    start: Time = 0


class Drop(msgspec.Struct, frozen=True, tag=True, gc=False):
    request: int
    reason: str = EXPIRED


class Preempt(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Cancel the batch that runs on a GPU; its requests wait again, its work so far is lost."""

    gpu: int


Action: TypeAlias = Dispatch | Drop | Preempt | SetTimer


class DynamicSpec(msgspec.Struct, frozen=True):
    """A dynamic spec is what is known beforehand of a model whose requests take unequal times.

    A batch of k takes c0 + c1 k max(single times). `history` holds, for each application, the times of
    single requests that were measured before the run, in rising order; none at all is a cold start.
    """

    c0: Time
    c1: float
    history: tuple[tuple[Time, ...], ...]


Together = Literal["padded", "bucket", "length"]


class Lengths(msgspec.Struct, frozen=True):
    """Lengths say how long batches take whose requests are of unequal length, such as texts.

    Lengths are rounded up to buckets: `longest` holds the longest request of each, rising, and `latency` a
    table for each, as `ModelSpec.latency` is one. `together` says who can share a run: with "padded" all
    members take as long as the longest; with "bucket" only members of one bucket, and with "length" only
    members of exactly one length, share a run, and a batch of others is several runs, one after another.
    """

    longest: tuple[int, ...]
    latency: tuple[tuple[Time, ...], ...]
    together: Together = "padded"

    def bucket_of(self, length: int) -> int:
        """Return the bucket of a length; the last one for any that is too long."""
        return min(bisect_left(self.longest, length), len(self.longest) - 1)

    def max_batch(self, bucket: int) -> int:
        """Return the largest batch that can run in a bucket."""
        return len(self.latency[bucket]) - 2

    def runs(self, requests: Iterable[Request]) -> list[tuple[int, int]]:
        """Return the runs that a batch consists of: of each its size and its bucket."""
        if self.together == "padded":
            buckets = [request.bucket for request in requests]
            return [(len(buckets), max(buckets))]
        kinds = [(one.bucket, one.length if self.together == "length" else 0) for one in requests]
        return [(len(list(members)), kind[0]) for kind, members in groupby(sorted(kinds))]


class ModelSpec(msgspec.Struct, frozen=True):
    """A model spec is a model as policies see it: estimates, never the truth of a single request.

    `latency[b]` is the estimated execution time of a batch of b on the slowest kind of GPU in the
    cluster, for b from 0 to `max_batch`, followed by FOREVER: no larger batch can run. Where requests have
    `lengths`, it is that of the longest ones.
    """

    index: int
    name: str
    slo: Time
    latency: tuple[Time, ...]
    dynamic: DynamicSpec | None = None  # None: a batch always takes what the table says
    lengths: Lengths | None = None  # None: all requests are alike

    @property
    def max_batch(self) -> int:
        return len(self.latency) - 2

    def can_run(self, requests: Sequence[Request]) -> bool:
        """Whether these requests are few enough to be a batch."""
        if self.lengths is None:
            return len(requests) <= self.max_batch
        return all(size <= self.lengths.max_batch(bucket) for size, bucket in self.lengths.runs(requests))

    def takes(self, requests: Sequence[Request]) -> Time:
        """Return the estimated execution time of a batch of these requests, all of its runs together."""
        if self.lengths is None:
            return self.latency[len(requests)]
        return sum(self.lengths.latency[bucket][size] for size, bucket in self.lengths.runs(requests))

    def largest_batch_within(self, budget: Time) -> int:
        """Return the largest batch whose estimate fits in *budget*; 0 if not even one request does."""
        return max(0, bisect_right(self.latency, budget) - 1) if budget >= 0 else 0


class GpuSpec(msgspec.Struct, frozen=True):
    id: int
    kind: str = "gpu"
    memory: int = 0
    node: int = 0


class Network(msgspec.Struct, frozen=True):
    """The network has delays that a decision must allow for (Symphony, Figure 18)."""

    control: Time = 0  # the order reaches the GPU's machine
    data: Time = 0  # one request's input is fetched there
    response: Time = 0  # the answer reaches the client

    def delay(self, batch_size: int) -> Time:
        """Return the time from the decision until a batch can start."""
        return self.control + self.data * batch_size


class Setup(msgspec.Struct, frozen=True):
    models: tuple[ModelSpec, ...]
    gpus: tuple[GpuSpec, ...]
    network: Network = Network()
    preemption_cost: Time = 0  # how long a GPU is unusable after a batch on it was cancelled


def latency_table(latencies: list[Time]) -> tuple[Time, ...]:
    """Return execution times for batches of 1, 2, ... as a ModelSpec has them."""
    return (0, *latencies, FOREVER)


class Request(msgspec.Struct, frozen=True, gc=False):
    id: int
    model: int  # index of its model in the setup
    arrival: Time
    deadline: Time
    application: int = 0
    length: int = 0  # of a model that has lengths
    bucket: int = 0  # that the length falls in


class RequestArrived(msgspec.Struct, frozen=True, tag=True, gc=False):
    request: Request


class BatchFinished(msgspec.Struct, frozen=True, tag=True, gc=False):
    gpu: int
    run: int
    started: Time
    ended: Time = 0  # when the GPU was done with it: the news may take a while. 0: just now


class BatchFailed(msgspec.Struct, frozen=True, tag=True, gc=False):
    gpu: int
    run: int
    error: str


class BatchPreempted(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The GPU has recovered from a preemption; the work between *started* and *stopped* is lost."""

    gpu: int
    run: int
    started: Time
    stopped: Time


class GpuJoined(msgspec.Struct, frozen=True, tag=True, gc=False):
    gpu: int


class GpuLeft(msgspec.Struct, frozen=True, tag=True, gc=False):
    gpu: int


class RequestProfiled(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A finished request of a dynamic model was run once more, alone, and took *time*.

    Only policies with the attribute `listens_to_profiler` hear it.
    """

    request: int
    model: int
    application: int
    time: Time


GpuEvent: TypeAlias = BatchFinished | BatchFailed | BatchPreempted | GpuJoined | GpuLeft
Event: TypeAlias = RequestArrived | GpuEvent | RequestProfiled | TimerFired
