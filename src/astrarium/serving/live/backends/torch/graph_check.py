"""CUDA graphs are tried before a model serves: they must answer as the model does kernel by kernel.

A graph does again what the model did once. One that changes in place what it keeps between calls, or keeps it
where nobody sees it, would answer wrong in a graph, without an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from astrarium.serving.live.backends.torch.graph_shapes import GraphShape
from astrarium.serving.live.tensors import Array, TensorSpec
from astrarium.serving.live.worker.deviations import ROUNDING, deviation

Answers = Mapping[str, Array]
Answering = Callable[[GraphShape], Answers]  # to the same made-up batch of a shape each time
_SHORTEST = GraphShape(1, 1)  # an item as short as the model takes: hardly a length that has graphs
_AGAIN = 2  # eager runs that show how far answers differ by themselves
_NOISE = 4  # times what these have shown


def first_wrong(
    shapes: Sequence[GraphShape], eager: Answering, replayed: Answering, outputs: Sequence[TensorSpec]
) -> GraphShape | None:
    """Return the first shape whose graph answers otherwise than an eager run, or None.

    All eager runs come first, as they will come between those of graphs: what the model keeps is then no
    longer what it was when the graphs were captured.
    """
    wanted = {shape: eager(shape) for shape in shapes}
    with suppress(Exception):  # where no range says how short items may be
        eager(_SHORTEST)
    for shape, answers in wanted.items():
        found = _deviations(outputs, answers, replayed(shape))
        if any(found[spec.name] > _rounding(spec) for spec in outputs):
            again = [_deviations(outputs, answers, eager(shape)) for _ in range(_AGAIN)]
            if any(found[spec.name] > _allowed(spec, again) for spec in outputs):
                return shape
    return None


def _deviations(outputs: Sequence[TensorSpec], one: Answers, other: Answers) -> dict[str, float]:
    return {spec.name: deviation(spec.datatype, one[spec.name], other[spec.name]) for spec in outputs}


def _allowed(spec: TensorSpec, again: Sequence[Mapping[str, float]]) -> float:
    """Return how far answers may be apart; those of a model that draws random numbers as far as they are."""
    return max(_rounding(spec), _NOISE * max(one[spec.name] for one in again))


def _rounding(spec: TensorSpec) -> float:
    return ROUNDING.get(spec.datatype, 0.0)
