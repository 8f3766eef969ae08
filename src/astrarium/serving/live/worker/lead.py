"""The lead of a model is how long its inputs take to reach the GPU, beside what it computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from astrarium.core.quantities import Time
from astrarium.serving.live.backends import batches, contract, examples
from astrarium.serving.live.backends.contract import Batch, LoadedModel
from astrarium.serving.live.tensors import TensorSpec
from astrarium.serving.live.worker.batch_turn import Clock
from astrarium.serving.live.worker.repeated_order import RepeatedOrder

# Requests lie in caches of other cores, or in none: 64 images of 150 kB were late by .4 ms without.
_COLD = 1.5
_TRIES = 5  # of which the shortest counts: other models' batches may be in the way


def measured_lead(model: LoadedModel, largest: int, clock: Clock) -> tuple[Time, Time]:
    """Return how long the inputs of one item take to reach the GPU, and those of each further one.

    That is nothing where the GPU waits for them as for everything else: for models that are not launched, or
    have no memory of their own for inputs.
    """
    if not isinstance(model, contract.Launching) or not isinstance(model, contract.Staging):
        return 0, 0
    one, all_of_them = (_shortest_lead(model, size, clock) for size in (1, largest))
    return one, round(_COLD * max(0, all_of_them - one) / max(1, largest - 1))


def _shortest_lead(model: Any, size: int, clock: Clock) -> Time:
    specs = _of_middle_length(model)
    batch = examples.batch(specs, size, np.random.default_rng(0))
    if contract.graph_runner(model, size, batches.length_of(model.inputs, batch)) is not None:
        order = RepeatedOrder(model, batch)
        return max(0, min(_native_lead(order) for _ in range(_TRIES)))
    return max(0, min(_python_lead(model, batch, clock) for _ in range(_TRIES)))


def _of_middle_length(model: LoadedModel) -> Sequence[TensorSpec]:
    """Return inputs as they are made up; where a model has buckets, in the middle one."""
    specs = examples.inputs_of(model)
    if not isinstance(model, contract.Bucketed) or not model.buckets:
        return specs
    return examples.with_lengths(specs, examples.nearest(model.buckets[len(model.buckets) // 2]))


def _native_lead(order: RepeatedOrder) -> Time:
    (done,) = order.carried_out(1)
    return done.started - done.received


def _python_lead(model: Any, batch: Batch, clock: Clock) -> Time:
    started = clock()
    staged = model.staging(batch.size)
    for name, array in staged.items():
        array[:] = batch.inputs[name]
    whole = replace(batch, inputs={**batch.inputs, **staged})
    began: Time = model.launch(whole, started).wait(started).began
    return began - started
