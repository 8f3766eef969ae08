"""Searches for a task are simulated here without a scenario."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from astrarium.core.choice import made
from astrarium.core.level import Watching
from astrarium.core.quantities import MILLISECOND, SECOND, Duration, Time
from astrarium.run.simulate import simulate
from astrarium.tuning.level import Truth, prepared
from astrarium.tuning.policies import searches, tuning_policies
from astrarium.tuning.record import TuningRecord
from astrarium.tuning.samplers import RandomSampler, Sampler
from astrarium.tuning.scenario.schema import CostsSection
from astrarium.tuning.scenario.tasks import Task
from astrarium.tuning.search.contract import Search
from astrarium.tuning.session import Session
from astrarium.tuning.spaces import Space

Settings = Mapping[str, Any]


def costs_of(starting: Time = 500 * MILLISECOND, moving: Time = 2 * SECOND) -> CostsSection:
    return CostsSection(Duration(starting), Duration(moving))


def run(
    task: Task,
    search: str,
    policy: str,
    gpus: int = 8,
    seed: int = 0,
    search_settings: Settings | None = None,
    policy_settings: Settings | None = None,
    sampler: Sampler | None = None,
    costs: CostsSection | None = None,
    stop_at_target: bool = False,
    validate: bool = False,
    space: Space | None = None,
    target: float | None = None,
    progress: Callable[[Time], None] | None = None,
) -> TuningRecord:
    """Simulate a search for a task, without a scenario.

    Same seed: the same candidates, with the same iteration times and values, under every policy. *space*: a
    part of the task's. *target*: the search ends there, or at the task's own if *stop_at_target*.
    """
    truth = Truth(task, seed)
    searching: Search = made(searches.get(search), search_settings, field="search")
    wanted = task.target if stop_at_target else target
    space = truth.space if space is None else space
    session = Session(searching, sampler or RandomSampler(space, seed), truth.worth, task.goal, wanted, space)
    deciding = made(tuning_policies.get(policy), policy_settings)
    watching = Watching(validate=validate)
    ready = prepared(truth, session, deciding, gpus, costs or CostsSection(), watching, policy)
    return ready.record(simulate(ready.engine, ready.arrivals, ready.world, progress))
