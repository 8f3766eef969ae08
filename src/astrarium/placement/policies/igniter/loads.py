"""Batches and rates for iGniter: what each model asks for before it meets others."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from astrarium.core.quantities import gib, to_ms
from astrarium.placement.gpu_share import traits_of
from astrarium.placement.igniter import model as igniter
from astrarium.placement.policies.igniter.gpu import IgniterGpu, ReplicaLoad
from astrarium.placement.problem import Form, PlacedModel


class ModelLoad(msgspec.Struct, frozen=True):
    """A model's load, where one GPU can run the model in time.

    *budget* is half of its objective, in ms; *limit* its largest batch by memory, profile and budget.
    """

    model: PlacedModel
    form: Form
    traits: igniter.ModelTraits
    budget: float
    limit: int

    def piece(self, batch: int, rate: float, budget: float, whole: bool = False) -> ReplicaLoad:
        memory = self.form.memory(0, batch)
        return ReplicaLoad(self.model.index, self.traits, batch, rate, budget, memory, whole)


def workload(model: PlacedModel, gpu: IgniterGpu) -> ModelLoad | str:
    """Return the load of a model, or why the model has no place on such a GPU."""
    form = model.alone
    if form is None:
        return "a profile on one GPU: iGniter does not spread a model over several"
    if form.memory(0, 1) > gpu.memory:
        return f"{gib(form.memory(0, 1))} on one GPU; the largest has {gib(gpu.memory)}"
    traits = traits_of(model)
    budget = to_ms(model.slo) / 2
    fitting = range(1, form.max_batch + 1)
    roomy = (batch for batch in fitting if form.memory(0, batch) <= gpu.memory)
    limit = max((batch for batch in roomy if _latency(gpu, form, traits, batch) <= budget), default=0)
    if limit == 0:
        least = 2 * _latency(gpu, form, traits, 1)
        return f"an objective of {least:.2f} ms: twice what a single request takes on a whole GPU"
    return ModelLoad(model, form, traits, budget, limit)


def _latency(gpu: IgniterGpu, form: Form, traits: igniter.ModelTraits, batch: int) -> float:
    """Return the latency on a whole GPU, in ms: the larger of what coefficients and profile say."""
    [alone] = igniter.predict(gpu.traits, [igniter.TenantLoad(traits, batch, igniter.WHOLE)])
    return max(alone.latency, to_ms(form.latency(batch)))


def split(work: ModelLoad, gpu: IgniterGpu, headroom: float) -> Iterator[ReplicaLoad]:
    """Split a load into a replica that keeps up with its rate, after as many on whole GPUs as that takes."""
    rate = work.model.rate
    [alone] = igniter.predict(gpu.traits, [igniter.TenantLoad(work.traits, work.limit, igniter.WHOLE)])
    while True:
        piece = _sized(work, gpu, rate)
        if gpu.tried(piece):
            yield piece
            return
        done = min(rate, headroom * alone.throughput)
        yield work.piece(work.limit, done, work.budget, whole=True)
        rate -= done
        if rate <= 0:
            return


def _sized(work: ModelLoad, gpu: IgniterGpu, rate: float) -> ReplicaLoad:
    batch = min(work.limit, igniter.batch_for(gpu.traits, work.traits, work.budget, rate))
    return work.piece(batch, rate, min(work.budget, _time_to_keep_up(work, gpu, batch, rate)))


def _time_to_keep_up(work: ModelLoad, gpu: IgniterGpu, batch: int, rate: float) -> float:
    """Return how long batches may take at a rate, in ms. Loading the next one goes on meanwhile."""
    if rate <= 0:
        return math.inf
    return 1000 * batch / rate + batch * work.traits.input_bytes / gpu.traits.bandwidth


def parts(work: ModelLoad, gpu: IgniterGpu, rate: float) -> Iterator[ReplicaLoad]:
    """Yield pieces that do as much of a rate as their batches can, the largest first."""
    largest = min(work.limit, igniter.batch_for(gpu.traits, work.traits, work.budget, rate))
    for batch in range(largest, 0, -1):
        running = work.budget - batch * work.traits.input_bytes / gpu.traits.bandwidth
        if running > 0:
            yield work.piece(batch, min(rate, 1000 * batch / running), work.budget)
