"""Clipper lets each replica find its own batch size by trial, up a step and down by a tenth.

Crankshaw et al., "Clipper: A Low-Latency Online Prediction Serving System", NSDI 2017, section 4.3. Every
model has a replica, with a queue of its own, on every GPU. A replica takes what waits up to its batch
size; after a full batch that met the latency objective the size grows by `increase`, after one that did
not it shrinks to `decrease` of itself (AIMD).

Settled by us: requests go to the replicas in rotation, whatever waits there; the latency compared with the
objective is the batch's execution time (or, with `latency: total`, the time since its oldest request
arrived); the size stays within what the model's profile allows; requests that have expired in the queue
are dropped, all others are run even if they will be late. Delayed batching (off by default in the paper)
is the policy `timeout`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from astrarium.core.quantities import Time
from astrarium.serving.contract import BatchFinished, Setup
from astrarium.serving.policies import LengthsAside, NativeParameters, serving_policies
from astrarium.serving.policies._entries import Queue, due_before
from astrarium.serving.policies._replicas import ReplicaScheduler
from astrarium.serving.state import Batch


@serving_policies.register("clipper")
class Clipper(ReplicaScheduler):
    """Let every replica adapt its batch size by additive increase and multiplicative decrease."""

    native = "clipper"
    parameters: Parameters

    class Parameters(LengthsAside, frozen=True):
        increase: Annotated[
            float, msgspec.Meta(gt=0, description="added to the batch size after a full batch in time")
        ] = 1.0
        decrease: Annotated[
            float, msgspec.Meta(gt=0, lt=1, description="what remains of it after a batch over the objective")
        ] = 0.9
        objective: Annotated[
            float, msgspec.Meta(gt=0, le=1, description="the latency objective as a share of the SLO")
        ] = 1.0
        latency: Annotated[
            Literal["execution", "total"],
            msgspec.Meta(description="what is held against it: execution, or all since the oldest arrival"),
        ] = "execution"

    def __init__(self, setup: Setup, parameters: Parameters) -> None:
        super().__init__(setup, parameters)
        self.limits = [[1.0] * len(setup.models) for _ in setup.gpus]  # batch size by GPU and model
        self._running: list[Batch | None] = [None] * len(setup.gpus)
        self._rotation = [0] * len(setup.models)

    def native_parameters(self) -> NativeParameters:
        chosen = self.parameters
        reals = {name: getattr(chosen, name) for name in ("increase", "decrease", "objective")}
        return NativeParameters({"total": int(chosen.latency == "total")}, reals, {})

    def regroup(self, now: Time, joined: Sequence[int]) -> None:
        for gpu in joined:
            self.limits[gpu] = [1.0] * len(self.setup.models)

    def route(self, model: int, request: int) -> int:
        gpu = self._present[self._rotation[model] % len(self._present)]
        self._rotation[model] += 1
        return gpu

    def gather(self, now: Time, gpu: int, model: int, queue: Queue) -> tuple[int, int]:
        expired = due_before(queue, now + 1)
        return expired, min(int(self.limits[gpu][model]), len(queue) - expired)

    def sent(self, batch: Batch) -> None:
        self._running[batch.gpu] = batch

    def finished(self, now: Time, event: BatchFinished) -> None:
        batch = self._running[event.gpu]
        if batch is None or batch.run != event.run:
            return  # heard before
        self._running[event.gpu] = None
        since = event.started
        if self.parameters.latency == "total":
            since = min(request.arrival for request in batch.requests)
        self._adapt(batch, now - since)

    def _adapt(self, batch: Batch, latency: Time) -> None:
        model = self.setup.models[batch.model]
        limits = self.limits[batch.gpu]
        limit = limits[batch.model]
        if latency > self.parameters.objective * model.slo:
            limits[batch.model] = max(1.0, limit * self.parameters.decrease)
        elif len(batch.requests) >= int(limit):
            limits[batch.model] = min(limit + self.parameters.increase, float(model.max_batch))
