"""Problems for the parts of the planner."""

from __future__ import annotations

from astrarium.core.quantities import MILLISECOND
from astrarium.placement.problem import Problem
from astrarium.testing.placement.problems import gpus, model


def five_models(count: int) -> Problem:
    """Models that use from little to half of a GPU."""
    used = enumerate((0.05, 0.1, 0.5, 0.2, 0.4))
    models = tuple(model(index, rate=50.0, slo=200 * MILLISECOND, use=use) for index, use in used)
    return Problem(models, gpus(count))
