"""What a serving policy is told before the first event: models, GPUs, network delays."""

from __future__ import annotations

from bisect import bisect_right

import msgspec

from astrarium.core.units import FOREVER, Time


class DynamicSpec(msgspec.Struct, frozen=True):
    """What is known beforehand of a model whose requests take unequal times.

    A batch of k takes c0 + c1 k max(single times). `history` holds, for each application, the times of
    single requests that were measured before the run, in rising order; none at all is a cold start.
    """

    c0: Time
    c1: float
    history: tuple[tuple[Time, ...], ...]


class ModelSpec(msgspec.Struct, frozen=True):
    """A model as policies see it: estimates, never the truth of a single request.

    `latency[b]` is the estimated execution time of a batch of b on the slowest kind of GPU in the
    cluster, for b from 0 to `max_batch`, followed by FOREVER: no larger batch can run.
    """

    index: int
    name: str
    slo: Time
    latency: tuple[Time, ...]
    dynamic: DynamicSpec | None = None  # None: a batch always takes what the table says

    @property
    def max_batch(self) -> int:
        return len(self.latency) - 2

    def largest_batch_within(self, budget: Time) -> int:
        """The largest batch whose estimate fits in *budget*; 0 if not even one request does."""
        return max(0, bisect_right(self.latency, budget) - 1) if budget >= 0 else 0


class GpuSpec(msgspec.Struct, frozen=True):
    id: int
    kind: str = "gpu"
    memory: int = 0
    node: int = 0


class Network(msgspec.Struct, frozen=True):
    """Delays that a decision must allow for (Symphony, Figure 18)."""

    control: Time = 0  # the order reaches the GPU's machine
    data: Time = 0  # one request's input is fetched there
    response: Time = 0  # the answer reaches the client

    def delay(self, batch_size: int) -> Time:
        """From the decision until the batch can start."""
        return self.control + self.data * batch_size


class Setup(msgspec.Struct, frozen=True):
    models: tuple[ModelSpec, ...]
    gpus: tuple[GpuSpec, ...]
    network: Network = Network()
    preemption_cost: Time = 0  # how long a GPU is unusable after a batch on it was cancelled


def latency_table(latencies: list[Time]) -> tuple[Time, ...]:
    """Execution times for batches of 1, 2, ... as a ModelSpec wants them."""
    return (0, *latencies, FOREVER)
