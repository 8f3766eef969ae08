"""What a call of a model takes of a server's path is measured beside its profile, and written with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import typer

from astrarium.cli.serving.profile.measuring import own_requests
from astrarium.cli.serving.profile.target import Target, loaded
from astrarium.core.quantities import Time
from astrarium.run.waiting import waiting
from astrarium.server.path_trial.trial import Call, NotMeasured, Sample, path_time, sample
from astrarium.serving.live import fills
from astrarium.serving.live.backends import examples
from astrarium.serving.live.backends.contract import LoadedModel
from astrarium.serving.live.backends.stacking import stack
from astrarium.serving.live.tensors import TensorSpec

_PREPROCESS = "its `preprocess` belongs to the path, and takes what clients' own requests take"


def sampled(
    model: LoadedModel, specs: Sequence[TensorSpec], largest: Sequence[int], data: Path | None
) -> Sample:
    """Return what clients send: of the *largest* size along each axis, or of the mean of somebody's own."""
    chance = np.random.default_rng(0)
    generators = getattr(model, "applications", None) or {}
    if generators:
        return sample(model, specs, [_of_one(generate(chance)) for generate in generators.values()])
    requests = own_requests(data, specs)
    sizes = largest if requests is None else requests.lengths.mean(axis=0).round().astype(int).tolist()
    fixed = fills.sized(specs, sizes)
    return sample(model, fixed, [{spec.name: examples.tensor(spec, 1, chance) for spec in fills.sent(fixed)}])


def _of_one(inputs: Mapping[str, Any]) -> Call:
    return {name: stack([np.asarray(array)]) for name, array in inputs.items()}


def measured(target: Target, taken: Sample) -> Time | None:
    """Measure what a call takes of the path; None where that cannot be, and why on stderr."""
    assert target.scenario is not None
    scenario = loaded(target.scenario)
    try:
        if scenario.models[target.name].preprocess is not None:
            raise NotMeasured(_PREPROCESS)
        with waiting(f"measuring the path of calls to {target.name}"):
            return path_time(scenario, target.name, taken)
    except NotMeasured as error:
        typer.echo(f"the path of calls was not measured: {error}", err=True)
        return None
