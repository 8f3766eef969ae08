"""A placement problem is what a policy is told: models with their load and objectives, and the GPUs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from astrarium.core.errors import InputError
from astrarium.core.quantities import FOREVER, Time
from astrarium.placement.igniter.model import GpuTraits, ModelTraits

if TYPE_CHECKING:
    from astrarium.core.arrivals import Ints


class Shape(msgspec.Struct, frozen=True, order=True):
    """A shape says how a model is spread over GPUs: *stages* in a pipeline, each over *operators* GPUs."""

    stages: int = 1
    operators: int = 1

    @property
    def gpus(self) -> int:
        return self.stages * self.operators

    def __str__(self) -> str:
        return f"op{self.operators}pp{self.stages}"


ALONE = Shape()
_SHAPE = re.compile(r"op([1-9]\d*)pp([1-9]\d*)\Z")
SHAPE_FORM = "a shape such as op2pp4: 4 stages, each over 2 GPUs"


def parse_shape(text: str, field: str) -> Shape:
    match = _SHAPE.match(text)
    if match is None:
        raise InputError(field, text, SHAPE_FORM)
    return Shape(stages=int(match[2]), operators=int(match[1]))


class Form(msgspec.Struct, frozen=True):
    """A form is one way to run a model: how long each stage takes, by batch size, and its memory.

    `stage_times[s][b]` is for a batch of b, from 0 to `max_batch`. `weights[s]` are bytes on each GPU of
    stage s; `activations[s]` come with every request of a batch. `reserved[s][b]`, where it was measured, is
    all that a stage needs for a batch of b, and takes the place of both.
    """

    shape: Shape
    stage_times: tuple[tuple[Time, ...], ...]
    weights: tuple[int, ...]
    activations: tuple[int, ...] = ()
    reserved: tuple[tuple[int, ...], ...] = ()

    @property
    def max_batch(self) -> int:
        return len(self.stage_times[0]) - 1

    def latency(self, batch: int) -> Time:
        """Return the latency of a batch that finds all stages free."""
        return sum(times[batch] for times in self.stage_times) if batch <= self.max_batch else FOREVER

    def interval(self, batch: int) -> Time:
        """Return the time between batches that follow each other closely: that of the slowest stage."""
        return max(times[batch] for times in self.stage_times) if batch <= self.max_batch else FOREVER

    def memory(self, stage: int, batch: int) -> int:
        """Return the bytes on each GPU of a stage."""
        if self.reserved:
            return self.reserved[stage][batch]
        extra = self.activations[stage] * batch if self.activations else 0
        return self.weights[stage] + extra


class GpuDemand(msgspec.Struct, frozen=True):
    """A model's demand is what it uses of a whole GPU, from 0 to 1; None where nobody measured it."""

    occupancy: float | None = None  # achieved, of the time in which kernels run
    weighted_occupancy: float | None = None  # of the whole time
    sm_utilization: float | None = None  # weighted
    memory_bandwidth: float | None = None


class PlacedModel(msgspec.Struct, frozen=True):
    """A model to place: `forms` by shape, `demands` by batch size, `rate` in requests a second."""

    index: int
    name: str
    slo: Time
    rate: float
    forms: Mapping[Shape, Form]
    demands: Mapping[int, GpuDemand] = {}
    igniter: ModelTraits | None = None  # iGniter's coefficients, where the model was profiled for it

    @property
    def alone(self) -> Form | None:
        """Return the form on one GPU, if the model fits there."""
        return self.forms.get(ALONE)


class PlacementGpu(msgspec.Struct, frozen=True):
    """A GPU to place models on; a replica stays within a node unless no node is large enough."""

    id: int
    memory: int
    node: int = 0
    kind: str = "gpu"
    igniter: GpuTraits | None = None


class PlacementRequests(msgspec.Struct, frozen=True):
    """Requests to plan with, in the order of arrival: an instant and the index of a model for each."""

    times: tuple[Time, ...] = ()
    models: tuple[int, ...] = ()

    @classmethod
    def of(cls, times: Ints, models: Ints) -> PlacementRequests:
        return cls(tuple(times.tolist()), tuple(models.tolist()))


class Problem(msgspec.Struct, frozen=True):
    """A problem's *requests* are for policies that simulate; plans are never judged by the same."""

    models: tuple[PlacedModel, ...]
    gpus: tuple[PlacementGpu, ...]
    requests: PlacementRequests = PlacementRequests()

    def gpu(self, id_: int) -> PlacementGpu:
        return next(gpu for gpu in self.gpus if gpu.id == id_)
