"""What workers load for each model of a scenario."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from astrarium.core.profiles import Dynamic
from astrarium.core.streams import stream
from astrarium.core.units import Time
from astrarium.engines.backends.contract import ModelFiles
from astrarium.scenario.schema import Model, Scenario
from astrarium.scenario.serving import specs
from astrarium.scenario.serving_schema import EMULATED

SAMPLES = 1024  # times alone that an emulated application draws from


def model_files(scenario: Scenario, name: str, table: Sequence[Time]) -> ModelFiles:
    """*table* holds the times of batches of 0, 1, ... on the kind of GPU that is meant."""
    model = scenario.models[name]
    options = dict(model.backend.options)
    if model.backend.name == EMULATED:
        options = _emulated(model, name, scenario.seed, table)
    inputs, outputs = specs(model.inputs), specs(model.outputs)
    return ModelFiles(name, model.backend.name, options, inputs, outputs, len(table) - 1)


def _emulated(model: Model, name: str, seed: int, table: Sequence[Time]) -> dict[str, Any]:
    profile = model.profile
    if not isinstance(profile, Dynamic):
        return {"table": list(table)}
    applications = [
        part.time.sample(stream(seed, "emulated", name, label), SAMPLES).tolist()
        for label, part in profile.applications.items()
    ]
    drawn = {"c0": profile.c0, "c1": profile.c1, "applications": applications, "seed": seed}
    return {"dynamic": drawn}
