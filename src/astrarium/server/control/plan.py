"""A serving plan is what a scenario asks a server to do: models, GPUs, the policy, limits."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astrarium.core.errors import InputError
from astrarium.core.profiles import Dynamic
from astrarium.core.quantities import write_duration
from astrarium.core.units import Time
from astrarium.server.control.bounds import alone
from astrarium.serving.contract import Setup
from astrarium.serving.live.backends.contract import ModelFiles, Place
from astrarium.serving.live.tensors import TensorSpec
from astrarium.serving.live.workers import WorkerSpec
from astrarium.serving.policies import ServingPolicy
from astrarium.serving.scenario import Scenario, build
from astrarium.serving.scenario.schema import ServerOptions
from astrarium.serving.twin import faster

# Which of this machine's devices a GPU of the scenario stands for. No driver is loaded to find out.


CPU = "cpu"


def visible_gpus(devices: Path = Path("/dev"), allowed: str | None = None) -> int:
    """Return how many NVIDIA GPUs a process here may use; *allowed* is CUDA_VISIBLE_DEVICES."""
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES") if allowed is None else allowed
    there = sum(bool(re.fullmatch(r"nvidia\d+", device.name)) for device in devices.glob("nvidia*"))
    if allowed is None:
        return there
    return min(there, len([name for name in allowed.split(",") if name.strip() not in ("", "-1")]))


def device_chooser(wanted: str, gpus: int) -> Callable[[int], str]:
    """Return a function from a GPU's number to its device; `auto` is CUDA where there is any.

    More GPUs than there are devices share them in turn.
    """
    if wanted == CPU or (wanted == "auto" and not gpus):
        return lambda gpu: CPU
    return lambda gpu: f"cuda:{gpu % max(gpus, 1)}"


@dataclass(frozen=True)
class ModelPlan:
    """A model's plan says what every kind of GPU loads for it, and what its clients may ask for."""

    index: int
    name: str
    files: dict[str, ModelFiles]  # by kind of GPU
    slo: Time
    max_batch: int
    loaded: bool
    priorities: dict[int, Time]
    applications: tuple[str, ...]
    preprocess: str | None
    accepts: tuple[TensorSpec, ...]  # what clients send, where that is not what the model takes

    @property
    def backend(self) -> str:
        return next(iter(self.files.values())).backend


@dataclass(frozen=True)
class ServingPlan:
    setup: Setup
    models: tuple[ModelPlan, ...]
    workers: tuple[WorkerSpec, ...]
    policy_name: str
    new_policy: Callable[[Setup], ServingPolicy]
    profiled_share: float
    queue: int
    memory: int
    measured_delays: bool  # the scenario says nothing of delays: measure them
    start_limit: Time = ServerOptions().start_limit


def plan(scenario: Scenario) -> ServingPlan:
    setup = build.setup(scenario)
    _check_objectives(setup)
    files = {kind: build.model_files(scenario, kind) for kind in scenario.cluster.kinds}
    device = device_chooser(scenario.server.device, visible_gpus())
    names = enumerate(scenario.models)
    return ServingPlan(
        setup=setup,
        models=tuple(_model(scenario, setup, files, index, name) for index, name in names),
        workers=tuple(WorkerSpec(gpu.id, Place(gpu.id, gpu.kind, device(gpu.id))) for gpu in setup.gpus),
        policy_name=scenario.policy.name,
        new_policy=lambda new: faster(build.policy(scenario, new), new),
        profiled_share=scenario.profiling.share,
        queue=scenario.server.queue,
        memory=scenario.server.memory,
        start_limit=scenario.server.start_limit,
        measured_delays=scenario.network == type(scenario.network)(),
    )


def _check_objectives(setup: Setup) -> None:
    """Refuse a model that cannot keep its own objective on an idle GPU: it would refuse every call."""
    for spec in setup.models:
        needed = alone(spec, setup.network)
        if spec.slo <= needed:
            expected = f"more than {write_duration(needed)}, what one request takes, delays included"
            raise InputError(f"models.{spec.name}.slo", write_duration(spec.slo), expected)


def _model(scenario: Scenario, setup: Setup, files: Any, index: int, name: str) -> ModelPlan:
    from astrarium.serving.scenario.models import specs

    model = scenario.models[name]
    profile = model.profile
    return ModelPlan(
        index=index,
        name=name,
        files={kind: described[index] for kind, described in files.items()},
        slo=model.slo,
        max_batch=setup.models[index].max_batch,
        loaded=model.loaded,
        priorities={level: int(slo) for level, slo in model.priorities.items()},
        applications=tuple(profile.applications) if isinstance(profile, Dynamic) else (),
        preprocess=model.preprocess,
        accepts=specs(model.accepts),
    )
