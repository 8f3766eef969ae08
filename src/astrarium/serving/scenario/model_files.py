"""Model files are what workers load for each model of a scenario."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from astrarium.core.errors import InputError, one_of
from astrarium.core.profiles import Dynamic
from astrarium.core.quantities import Time
from astrarium.core.streams import stream
from astrarium.serving.scenario.schema import Model, Scenario
from astrarium.serving.scenario.served import specs
from astrarium.serving.scenario.tensor_entries import EMULATED

if TYPE_CHECKING:
    from astrarium.serving.live.backends.contract import ModelFiles
from astrarium.serving.scenario.build import batch_times

SAMPLES = 1024  # times alone that an emulated application draws from


def files_of_model(scenario: Scenario, name: str, table: Sequence[Time]) -> ModelFiles:
    """Return what a worker loads; *table* has the times of batches of 0, 1, ... on its kind of GPU."""
    from astrarium.serving.live.backends.contract import ModelFiles
    from astrarium.serving.live.fills import marked

    model = scenario.models[name]
    options = dict(model.backend.options)
    if model.backend.name == EMULATED:
        options = _emulated(model, name, scenario.seed, table)
    inputs = marked(specs(model.inputs), model.lengths, model.mask) if model.inputs else ()
    return ModelFiles(
        name,
        model.backend.name,
        options,
        inputs,
        specs(model.outputs),
        max_batch=len(table) - 1,
        lengths=model.lengths,
        mask=model.mask,
    )


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


def model_files(scenario: Scenario, kind: str) -> list[ModelFiles]:
    """Return what a worker on a GPU of this kind loads, by model in the setup's order."""

    kinds = scenario.cluster.kinds
    if kind not in kinds:
        raise InputError("kind", kind, f"a kind of GPU in the cluster: {one_of(kinds, kind)}")
    place = kinds.index(kind)
    described_models = []
    for name, model in scenario.models.items():
        times = [times[place] for times in batch_times(name, model, scenario.cluster)]
        described_models.append(files_of_model(scenario, name, [0, *times]))
    return described_models
