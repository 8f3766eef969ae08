"""A serving plan is what a scenario asks a server to do: models, GPUs, the policy, limits."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from astrarium.core.errors import InputError
from astrarium.core.optional import extension
from astrarium.core.profiles import Dynamic
from astrarium.core.quantities import Time, write_duration
from astrarium.server.control.devices import device_chooser, visible_gpus
from astrarium.server.control.health.bounds import alone
from astrarium.serving.contract import Setup
from astrarium.serving.live.backends.contract import ModelFiles, Place
from astrarium.serving.live.tensors import TensorSpec
from astrarium.serving.live.workers import WorkerSpec
from astrarium.serving.policies import ServingPolicy
from astrarium.serving.scenario import Scenario, build
from astrarium.serving.scenario.model_files import model_files
from astrarium.serving.scenario.server_options import ServerOptions
from astrarium.serving.scenario.tokenization import Tokenization
from astrarium.serving.twin.live import LiveTwin, faster


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
    preprocess: str | Tokenization | None
    accepts: tuple[TensorSpec, ...]  # what clients send, where that is not what the model takes
    by_length: bool = False  # its profile says what requests of each length take

    @property
    def backend(self) -> str:
        return next(iter(self.files.values())).backend

    @property
    def packed(self) -> bool:
        return next(iter(self.files.values())).pack

    @property
    def sizes(self) -> tuple[tuple[int, ...], ...]:
        return next(iter(self.files.values())).sizes


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
    shared_memory: int = 0  # bytes of clients that they may register
    tells_users_apart: bool = True  # each user of this machine reaches its own
    start_limit: Time = ServerOptions().start_limit
    threads: int = 1  # that read calls, where uvicorn does not
    uvicorn: str = ""  # one of WHY_UVICORN: why uvicorn reads the calls; empty: network threads do
    python_policy: str = ""  # why the policy decides in Python; empty: its native twin does

    @property
    def told_path(self) -> str:
        """Return who reads calls and who decides, and why it is Python where it is."""
        threads = f"{self.threads} network thread{'s' * (self.threads > 1)}"
        readers = f"uvicorn ({WHY_UVICORN[self.uvicorn]})" if self.uvicorn else threads
        decided = f"by a policy in Python ({self.python_policy})" if self.python_policy else "natively"
        return f"calls are read by {readers} and scheduled {decided}"


WHY_UVICORN = {"server_path": "server.path says so", "tls": "TLS is ended there"}
_MOST_THREADS = 8


def _why_uvicorn(server: ServerOptions) -> str:
    """Return why network threads cannot read calls, or are not to; empty where they do."""
    obstacles = {"server_path": server.path == "python", "tls": server.tls is not None}
    return next((why for why, there in obstacles.items() if there), "")


def _why_python(scenario: Scenario, policy: ServingPolicy) -> str:
    """Return why the policy decides in Python; empty where its native twin does."""
    obstacles = {
        f"policy {scenario.policy.name} has no live native twin": not isinstance(policy, LiveTwin),
        "what is recorded is decided in Python": scenario.server.record is not None,
    }
    return next((why for why, there in obstacles.items() if there), "")


def _path(scenario: Scenario, policy: ServingPolicy) -> tuple[str, str]:
    """Return why uvicorn reads the calls, and why Python decides on them."""
    uvicorn = _why_uvicorn(scenario.server)
    python = _why_python(scenario, policy)
    if scenario.server.path == "native" and (uvicorn or python):
        why = python or f"uvicorn reads the calls: {WHY_UVICORN[uvicorn]}"
        raise InputError("server.path", "native", f"auto or python, since {why}")
    return uvicorn, python


def network_threads(server: ServerOptions) -> int:
    """Return how many threads read calls, where uvicorn does not: one for every two cores unless told."""
    return server.threads or max(1, min(_MOST_THREADS, (os.cpu_count() or 1) // 2))


def _check_extension() -> None:
    if any(extension(name) is None for name in ("_simulator", "_front", "_scheduler")):
        expected = (
            "the native extension, which was not built here: install astrarium from a wheel, or with a C++20 "
            "compiler (pip install --force-reinstall --no-deps astrarium)"
        )
        raise InputError("server", None, expected)


def plan(scenario: Scenario) -> ServingPlan:
    _check_extension()
    setup = build.setup(scenario)
    _check_objectives(setup)
    files = {kind: model_files(scenario, kind) for kind in scenario.cluster.kinds}
    device = device_chooser(scenario.server.device, visible_gpus())
    names = enumerate(scenario.models)

    def new_policy(setup: Setup) -> ServingPolicy:
        return faster(build.policy(scenario, setup), setup)

    uvicorn, python_policy = _path(scenario, new_policy(setup))
    return ServingPlan(
        setup=setup,
        models=tuple(_model(scenario, setup, files, index, name) for index, name in names),
        workers=tuple(WorkerSpec(gpu.id, Place(gpu.id, gpu.kind, device(gpu.id))) for gpu in setup.gpus),
        policy_name=scenario.policy.name,
        new_policy=new_policy,
        profiled_share=scenario.profiling.share,
        queue=scenario.server.queue,
        memory=scenario.server.memory,
        shared_memory=scenario.server.shared_memory,
        tells_users_apart=scenario.server.shared_memory_clients == "local",
        start_limit=scenario.server.start_limit,
        measured_delays=scenario.network == type(scenario.network)(),
        threads=network_threads(scenario.server),
        uvicorn=uvicorn,
        python_policy=python_policy,
    )


def _check_objectives(setup: Setup) -> None:
    """Refuse a model that cannot keep its own objective on an idle GPU: it would refuse every call."""
    for spec in setup.models:
        needed = alone(spec, setup.network)
        if spec.slo <= needed:
            expected = f"more than {write_duration(needed)}, what one request takes, delays included"
            raise InputError(f"models.{spec.name}.slo", write_duration(spec.slo), expected)


def _model(scenario: Scenario, setup: Setup, files: Any, index: int, name: str) -> ModelPlan:
    from astrarium.serving.scenario.served import specs

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
        by_length=setup.models[index].lengths is not None,
    )
