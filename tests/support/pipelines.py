"""Models that can also run as a pipeline of two stages, half of the work and of the weights in each."""

from __future__ import annotations

import msgspec

from astrarium.placement.problem import ALONE, Form, PlacedModel, Problem, Shape

PIPELINE = Shape(stages=2)


def halved(problem: Problem) -> Problem:
    """The problem with such a form of every model."""
    return msgspec.structs.replace(problem, models=tuple(map(_with_halves, problem.models)))


def _with_halves(model: PlacedModel) -> PlacedModel:
    alone = model.forms[ALONE]
    times = tuple(time // 2 for time in alone.stage_times[0])
    half = Form(PIPELINE, (times, times), (alone.weights[0] // 2,) * 2)
    return msgspec.structs.replace(model, forms={**model.forms, PIPELINE: half})
