"""Trials of a search on some GPUs, as a level."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import ceil
from typing import Any

import msgspec

from astrarium.core.choice import chosen, made
from astrarium.core.engine import Engine
from astrarium.core.errors import InputError
from astrarium.core.level import Level, Report, Simulation, Watching
from astrarium.core.trace import Step
from astrarium.core.units import MILLISECOND, SECOND, Time
from astrarium.run.simulate import simulate
from astrarium.tuning.contract import Action, Event, GpusChanged, Put, RuntimeMeasured, Trial, TrialStepped
from astrarium.tuning.policies import TuningPolicy, searches, tuning_policies
from astrarium.tuning.record import TuningRecord, Watch
from astrarium.tuning.report import files as report
from astrarium.tuning.runtime import Runtime
from astrarium.tuning.samplers import RandomSampler, Sampler
from astrarium.tuning.scenario.read import DEFAULT_POLICY, TuningScenario, parse
from astrarium.tuning.scenario.schema import sampler_of
from astrarium.tuning.scenario.tasks import Task
from astrarium.tuning.search.contract import Search
from astrarium.tuning.session import Session, SessionEngine
from astrarium.tuning.spaces import Space, space_of
from astrarium.tuning.state import TuningState
from astrarium.tuning.world import TuningWorld

Settings = Mapping[str, Any]


class Costs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """*starting* a trial, *moving* one to other GPUs, and iterations after which a candidate's are known."""

    starting: Time = 500 * MILLISECOND
    moving: Time = 2 * SECOND
    profile: int = 1


class Truth:
    """What is so of a task's candidates, whoever trains them where."""

    def __init__(self, task: Task, seed: int) -> None:
        self.task, self.seed = task, seed
        self.space: Space = space_of(task.space)
        self.values: Callable[[int], Mapping[str, Any]] = _unknown
        self._runtimes: dict[int, Runtime] = {}

    @property
    def usual(self) -> Runtime:
        return Runtime(self.task.iteration, self.task.packing, self.task.scaling)

    def runtime(self, candidate: int) -> Runtime:
        if candidate not in self._runtimes:
            time = self.task.iteration_time(self._parts(candidate), self.seed, candidate)
            self._runtimes[candidate] = Runtime(time, self.task.packing, self.task.scaling)
        return self._runtimes[candidate]

    def worth(self, trial: Trial) -> float:
        return self.task.value(self._parts(trial.candidate), trial.total, self.seed, trial.candidate)

    def _parts(self, candidate: int) -> dict[str, float]:
        values = self.values(candidate)
        return {name: dimension.part(values[name]) for name, dimension in self.space.items()}


class ProfiledWorld(TuningWorld):
    """How long a candidate's iterations take is known once it has trained for some."""

    def __init__(self, truth: Truth, costs: Costs) -> None:
        super().__init__(truth.runtime, costs.moving, costs.starting)
        self._truth, self._costs, self._known = truth, costs, set[int]()

    def consequences(self, now: Time, action: Action, state: TuningState) -> Iterator[tuple[Time, Event]]:
        yield from super().consequences(now, action, state)
        if type(action) is Put:
            yield from self._profiled(now, action, state)

    def _profiled(self, now: Time, put: Put, state: TuningState) -> Iterator[tuple[Time, Event]]:
        """How far it is, is heard with it: the books would reckon with what was believed before."""
        row = state.open[put.trial]
        candidate, profile = row.trial.candidate, self._costs.profile
        if candidate not in self._known:
            self._known.add(candidate)
            runtime = self._truth.runtime(candidate)
            at = now + self._costs.starting + ceil(profile * runtime.at(put.place.width))
            yield at, TrialStepped(put.trial, row.run, min(row.trial.iterations, row.done + profile))
            yield at, RuntimeMeasured(candidate, runtime)


def prepared(
    truth: Truth,
    session: Session,
    policy: TuningPolicy,
    gpus: int,
    costs: Costs,
    watching: Watching,
    label: str,
) -> Simulation[TuningRecord]:
    """Make the books, the world and the first events of a search."""
    truth.values = lambda candidate: session.candidates[candidate].values
    state = TuningState(costs.moving, truth.usual)
    watch = Watch(state)

    def hear(step: Step) -> None:
        watch(step)
        if watching.trace is not None:
            watching.trace(step)

    engine = SessionEngine(state, policy, watching.validate, hear, session)
    first: list[Event] = [GpusChanged(tuple(range(gpus))), *session.begin(gpus)]
    return Simulation(
        engine,
        [(0, event) for event in first],
        ProfiledWorld(truth, costs),
        lambda end: watch.record(label, session),
    )


def run(
    task: Task,
    search: str,
    policy: str,
    gpus: int = 8,
    seed: int = 0,
    search_settings: Settings | None = None,
    policy_settings: Settings | None = None,
    sampler: Sampler | None = None,
    costs: Costs | None = None,
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
    ready = prepared(truth, session, deciding, gpus, costs or Costs(), watching, policy)
    return ready.record(simulate(ready.engine, ready.arrivals, ready.world, progress))


def prepare(scenario: TuningScenario, policy: TuningPolicy, watching: Watching) -> Simulation[TuningRecord]:
    """Make the books, the world and the first events of a scenario's search."""
    task = _task_of(scenario)
    truth = Truth(task, scenario.seed)
    costs = Costs(scenario.costs.starting, scenario.costs.moving, scenario.costs.profile)
    session = Session(
        chosen(searches, scenario.search, field="search"),
        sampler_of(scenario.sampler, scenario.space, scenario.goal, scenario.seed),
        truth.worth,
        task.goal,
        scenario.target,
        scenario.space,
    )
    return prepared(truth, session, policy, scenario.gpus, costs, watching, scenario.policy.name)


def replayed(scenario: TuningScenario, policy: TuningPolicy) -> Engine[Any, Any, Any]:
    """Make books that a recorded run is fed into: what its session asked for stands in the recording."""
    usual = None if scenario.task is None else Truth(scenario.task, scenario.seed).usual
    return Engine(TuningState(scenario.costs.moving, usual), policy)


def _task_of(scenario: TuningScenario) -> Task:
    if scenario.task is None:
        told = "a task beside train: what an iteration takes, and how candidates learn"
        raise InputError("task", None, told, scenario.source)
    return scenario.task


def _unknown(candidate: int) -> Mapping[str, Any]:
    raise InputError("candidate", candidate, "a candidate of a session that has begun")


LEVEL: Level[TuningScenario, TuningRecord] = Level(
    name="tuning",
    subject="trials of a search",
    item="trial",
    scenario=TuningScenario,
    events=Event,
    actions=Action,
    policies=tuning_policies,
    default=DEFAULT_POLICY,
    parse=parse,
    prepare=prepare,
    replayed=replayed,
    report=Report(
        summarize=report.summarize_run,
        tables=report.tables,
        shown=report.shown,
        write=report.write,
        draw=report.draw,
        picture="utilization.png",
        files=report.FILES,
        rows=report.rows,
        explain=report.explain,
    ),
    named={},
)
