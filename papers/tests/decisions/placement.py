"""What placement policies plan for models that were measured on a V100."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from random import Random

from tests.support.decisions.digests import Case
from tests.support.decisions.placement import drawn_requests, placement

from astrarium.core.quantities import MILLISECOND
from astrarium.placement.problem import Problem
from astrarium.serving.planning.known import interference_named
from astrarium_papers.elvinger._v100 import placed_model, v100s

MEASURED = ["alexnet", "resnet50", "vgg19"]


def cases() -> Iterator[Case]:
    for seed in range(1, 7):
        yield Case("placement", f"measured-{seed}", placement, partial(measured_problem, seed))


def measured_problem(seed: int) -> Problem:
    """Models that were measured on a V100, by iGniter too."""
    draw = Random(f"measured {seed}")
    slo = draw.randint(60, 200) * MILLISECOND
    models = tuple(
        placed_model(index, name, float(draw.randint(20, 120)), slo) for index, name in enumerate(MEASURED)
    )
    requests = drawn_requests(draw, [model.rate for model in models], 5)
    known, _ = interference_named("igniter")
    return known(Problem(models, v100s(draw.randint(2, 4)), requests))
