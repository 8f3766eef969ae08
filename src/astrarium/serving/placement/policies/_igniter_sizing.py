"""Batches and rates for iGniter: what each model asks for before it meets others."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from astrarium.core.units import to_ms
from astrarium.serving.placement.igniter_model import WHOLE, Load, ModelTraits, batch_for, predict
from astrarium.serving.placement.policies._igniter_gpu import Piece, SharedGpu
from astrarium.serving.placement.problem import Form, PlacedModel
from astrarium.serving.placement.sharing import traits_of
from astrarium.serving.placement.words import gib


class Workload(msgspec.Struct, frozen=True):
    """A model that one GPU can run in time. *budget* is half of its objective, in ms; *limit* its largest
    batch by memory, profile and budget."""

    model: PlacedModel
    form: Form
    traits: ModelTraits
    budget: float
    limit: int

    def piece(self, batch: int, rate: float, budget: float, whole: bool = False) -> Piece:
        memory = self.form.memory(0, batch)
        return Piece(self.model.index, self.traits, batch, rate, budget, memory, whole)


def workload(model: PlacedModel, gpu: SharedGpu) -> Workload | str:
    """Or why it has no place on such a GPU."""
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
    return Workload(model, form, traits, budget, limit)


def _latency(gpu: SharedGpu, form: Form, traits: ModelTraits, batch: int) -> float:
    """On a whole GPU, in ms: the larger of what the coefficients and the profile say."""
    [alone] = predict(gpu.traits, [Load(traits, batch, WHOLE)])
    return max(alone.latency, to_ms(form.latency(batch)))


def split(work: Workload, gpu: SharedGpu, headroom: float) -> Iterator[Piece]:
    """A replica that keeps up with the rate, after as many on whole GPUs as it takes to bring that down to
    what one GPU can do."""
    rate = work.model.rate
    [alone] = predict(gpu.traits, [Load(work.traits, work.limit, WHOLE)])
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


def _sized(work: Workload, gpu: SharedGpu, rate: float) -> Piece:
    batch = min(work.limit, batch_for(gpu.traits, work.traits, work.budget, rate))
    return work.piece(batch, rate, min(work.budget, _time_to_keep_up(work, gpu, batch, rate)))


def _time_to_keep_up(work: Workload, gpu: SharedGpu, batch: int, rate: float) -> float:
    """How long batches may take, in ms, at a rate. Loading the next one goes on meanwhile."""
    if rate <= 0:
        return math.inf
    return 1000 * batch / rate + batch * work.traits.input_bytes / gpu.traits.bandwidth


def parts(work: Workload, gpu: SharedGpu, rate: float) -> Iterator[Piece]:
    """Pieces that do as much of a rate as their batches can, the largest first."""
    largest = min(work.limit, batch_for(gpu.traits, work.traits, work.budget, rate))
    for batch in range(largest, 0, -1):
        running = work.budget - batch * work.traits.input_bytes / gpu.traits.bandwidth
        if running > 0:
            yield work.piece(batch, min(rate, 1000 * batch / running), work.budget)
