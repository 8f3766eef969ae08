"""Runs of the tuning level without a scenario file: a search for a task, or groups of trials and no search.

Tests of policies and of searches play them, and so do the papers' tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from astrarium.core.choice import made
from astrarium.core.engine import Engine
from astrarium.core.level import Watching
from astrarium.core.quantities import MILLISECOND, SECOND, Duration, Time
from astrarium.core.trace import Step
from astrarium.run.simulate import simulate
from astrarium.tuning.contract import Event, GpusChanged, GroupArrived, Put
from astrarium.tuning.level import Truth, prepared
from astrarium.tuning.policies import searches, tuning_policies
from astrarium.tuning.record import TuningRecord
from astrarium.tuning.runtime import Runtime
from astrarium.tuning.samplers import RandomSampler, Sampler
from astrarium.tuning.scenario.schema import CostsSection
from astrarium.tuning.scenario.tasks import Task
from astrarium.tuning.search.contract import Search
from astrarium.tuning.session import Session
from astrarium.tuning.spaces import Space
from astrarium.tuning.state import TrialRow, TuningState
from astrarium.tuning.world import TuningWorld

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


class GroupsPlayed(NamedTuple):
    rows: list[TrialRow]
    puts: list[tuple[Time, Put]]

    @property
    def end(self) -> Time:
        return max((row.ended for row in self.rows), default=0)


def play_groups(
    policy: str,
    groups: Sequence[tuple[Time, GroupArrived]],
    gpus: int,
    runtime: Runtime,
    moving: Time = 0,
    settings: Settings | None = None,
) -> GroupsPlayed:
    """Run groups of candidates that all have the same *runtime*, which the policy knows."""
    state = TuningState(moving, runtime)
    puts = list[tuple[Time, Put]]()

    def record(step: Step) -> None:
        puts.extend((step.now, action) for action in step.actions if isinstance(action, Put))

    engine = Engine(state, made(tuning_policies.get(policy), settings, field="policy"), record=record)
    start: list[tuple[Time, Event]] = [(0, GpusChanged(tuple(range(gpus))))]
    simulate(engine, [*start, *groups], TuningWorld(lambda _: runtime, moving))
    return GroupsPlayed(list(state.ledger.rows.values()), puts)
