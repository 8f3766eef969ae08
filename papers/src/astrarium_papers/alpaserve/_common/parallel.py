"""How a model is divided over GPUs for inference: AlpaServe's section 4.1.

Layers are cut into stages so that the slowest stage is as fast as it can be, by the dynamic program
F(s, k) = min over i of max(F(s - 1, i - 1), time of layers i to k). Within a stage each layer is split
over the stage's GPUs, which then exchange their parts of its result, or kept whole on all of them,
whichever is faster. Where a form was measured, that is used instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise

import msgspec

from astrarium.core.errors import InputError
from astrarium.core.quantities import SECOND, Time
from astrarium.placement.problem import Form, Shape


class Layer(msgspec.Struct, frozen=True):
    """`times[b]` alone on a GPU for a batch of b, from 0. *exchanged* bytes for each request are summed
    over the GPUs that share the layer; *output* bytes for each request go on to the next stage."""

    times: tuple[Time, ...]
    weights: int
    exchanged: int = 0
    output: int = 0


class Link(msgspec.Struct, frozen=True):
    """The link between GPUs of a node: bytes a second each way, and how long the smallest message takes."""

    bandwidth: float
    delay: Time = 0

    def send(self, size: int) -> Time:
        return self.delay + round(size * SECOND / self.bandwidth)

    def all_reduce(self, size: int, gpus: int) -> Time:
        """Return the time of an exchange around a ring: every GPU sends 2 (n - 1) / n of it, in 2 (n - 1)
        messages."""
        if gpus == 1:
            return 0
        return 2 * (gpus - 1) * self.delay + round(2 * (gpus - 1) / gpus * size * SECOND / self.bandwidth)


def layer_time(layer: Layer, batch: int, operators: int, link: Link) -> Time:
    """Return the time of a layer split over GPUs, with the exchange, or whole on each, if that is faster."""
    split = -(-layer.times[batch] // operators) + link.all_reduce(layer.exchanged * batch, operators)
    return min(layer.times[batch], split)


def is_split(layer: Layer, operators: int, link: Link) -> bool:
    """Return whether each GPU keeps a part of the weights only; it is decided for a single request."""
    return operators > 1 and layer_time(layer, 1, operators, link) < layer.times[1]


def cut(times: Sequence[Time], stages: int) -> tuple[int, ...]:
    """Return where stages begin (and the end), so that the slowest is fastest; of equal ways, cuts as early
    as can be."""
    if not 1 <= stages <= len(times):
        raise InputError("stages", stages, f"from 1 to the number of layers, {len(times)}")
    sums = [0, *accumulate(times)]
    slowest: list[float] = [0.0, *[float("inf")] * len(times)]
    began: list[list[int]] = []
    for _ in range(stages):
        slowest, begins = _one_stage_more(slowest, sums)
        began.append(begins)
    edges = [len(times)]
    for begins in reversed(began):
        edges.append(begins[edges[-1]])
    return tuple(reversed(edges))


def _one_stage_more(slowest: list[float], sums: list[int]) -> tuple[list[float], list[int]]:
    count = len(sums)
    better = [float("inf")] * count
    begins = [0] * count
    for end in range(1, count):
        for begin in range(end):
            worst = max(slowest[begin], sums[end] - sums[begin])
            if worst < better[end]:
                better[end], begins[end] = worst, begin
    return better, begins


def parallelize(layers: Sequence[Layer], shape: Shape, link: Link) -> Form:
    """Return the form that the dynamic program finds. Stages are cut for single requests, and hold for all
    batches."""
    if shape.operators < 1:
        raise InputError("operators", shape.operators, "at least 1")
    operators = shape.operators
    edges = cut([layer_time(layer, 1, operators, link) for layer in layers], shape.stages)
    stages = [layers[a:b] for a, b in pairwise(edges)]
    last = len(stages) - 1
    times = tuple(_stage_times(stage, operators, link, number < last) for number, stage in enumerate(stages))
    return Form(shape, times, tuple(_stage_weights(stage, operators, link) for stage in stages))


def _stage_times(stage: Sequence[Layer], operators: int, link: Link, sends: bool) -> tuple[Time, ...]:
    batches = range(1, min(len(layer.times) for layer in stage))
    passed = stage[-1].output if sends else 0
    of_batch = (sum(layer_time(layer, batch, operators, link) for layer in stage) for batch in batches)
    after = (link.send(passed * batch) if passed else 0 for batch in batches)
    return (0, *(run + sent for run, sent in zip(of_batch, after, strict=True)))


def _stage_weights(stage: Sequence[Layer], operators: int, link: Link) -> int:
    parts = (operators if is_split(layer, operators, link) else 1 for layer in stage)
    return sum(-(-layer.weights // part) for layer, part in zip(stage, parts, strict=True))


def forms(
    layers: Sequence[Layer], shapes: Iterable[Shape], link: Link, measured: Mapping[Shape, Form] | None = None
) -> dict[Shape, Form]:
    """Return a form for each shape: the measured one where there is one, else as computed. Those with more
    stages than layers are left out."""
    known = dict(measured or {})
    possible = (shape for shape in shapes if shape in known or shape.stages <= len(layers))
    return {shape: known.get(shape) or parallelize(layers, shape, link) for shape in possible}
