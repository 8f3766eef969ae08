"""A scenario's search, live: on the GPUs of this machine, on emulated ones, or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from astrarium.core.units import SECOND
from astrarium.scenario.tuning import TuningScenario
from astrarium.scenario.tuning_samplers import sampler_of
from astrarium.tuning.live_memory import Options
from astrarium.tuning.record import TuningRecord


def run_live(
    scenario: TuningScenario, folder: Path | None, resume: bool, progress: Callable[[Any], None]
) -> TuningRecord:
    """*folder* keeps checkpoints and results, and *resume* goes on with what is there."""
    from astrarium.engines.tuning_run import Wish, run_local, run_with
    from astrarium.engines.tuning_training import Emulated

    assert scenario.train is not None
    build: str = scenario.train
    wish = Wish(
        space=scenario.space,
        search=scenario.search,
        search_settings=scenario.search_settings,
        sampler=sampler_of(scenario.sampler, scenario.space, scenario.goal, scenario.seed),
        policy=scenario.policy,
        policy_settings=scenario.policy_settings,
        goal=scenario.goal,
        target=scenario.target,
        seed=scenario.seed,
        folder=folder,
        resume=resume,
        progress=progress,
        options=Options() if scenario.live.longest is None else Options(longest=scenario.live.longest),
    )
    said = scenario.emulated
    emulated = None if said is None else Emulated(packing=said.packing, scaling=said.scaling)
    if scenario.engine == "local":
        return run_local(build, wish, gpus(scenario), emulated, **settings(scenario))
    from astrarium.engines.tuning_ray import RayCrew

    given = {"folder": folder, "seed": scenario.seed, **settings(scenario)}
    return run_with(wish, lambda: RayCrew(build, gpus(scenario), emulated, **given))


def gpus(scenario: TuningScenario) -> int | None:
    """None: all that are there. What a simulation takes unless told is a guess about other machines."""
    told = scenario.raw.get("gpus") is not None or scenario.emulated is not None
    return scenario.gpus if told else None


def settings(scenario: TuningScenario) -> dict[str, Any]:
    """Of the crew: those that the file has."""
    live = scenario.live
    times = {"checkpoint_seconds": live.checkpoints, "patience": live.patience}
    others = {name: getattr(live, name) for name in ("packing", "gate", "threads", "address")}
    found = {name: None if value is None else value / SECOND for name, value in times.items()}
    return {name: value for name, value in {**found, **others}.items() if value is not None}
