"""Trials of a search on some GPUs, as a level."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import ceil
from typing import Any

from astrarium.core.choice import chosen
from astrarium.core.engine import Engine
from astrarium.core.errors import InputError
from astrarium.core.level import Level, Simulation, Watching
from astrarium.core.quantities import Time
from astrarium.tuning.contract import Action, Event, GpusChanged, Put, RuntimeMeasured, Trial, TrialStepped
from astrarium.tuning.policies import DEFAULT_POLICY, TuningPolicy, searches, tuning_policies
from astrarium.tuning.record import TuningRecord, Watch
from astrarium.tuning.report import files as report
from astrarium.tuning.runtime import Runtime
from astrarium.tuning.scenario.read import TuningScenario, parse
from astrarium.tuning.scenario.sampler import sampler_of
from astrarium.tuning.scenario.schema import CostsSection
from astrarium.tuning.scenario.tasks import Task
from astrarium.tuning.session import Session, SessionEngine
from astrarium.tuning.spaces import Space, space_of
from astrarium.tuning.state import TuningState
from astrarium.tuning.world import TuningWorld


class Truth:
    """The truth of a task's candidates is the same whoever trains them where; no policy sees it."""

    def __init__(self, task: Task, seed: int) -> None:
        self.task = task
        self.seed = seed
        self.space: Space = space_of(task.space)
        self.values: Callable[[int], Mapping[str, Any]]  # of candidates, once a session has begun
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
    """The world reports how long a candidate's iterations take once it has trained for some."""

    def __init__(self, truth: Truth, costs: CostsSection) -> None:
        super().__init__(truth.runtime, costs.moving, costs.starting)
        self._truth = truth
        self._costs = costs
        self._known = set[int]()

    def consequences(self, now: Time, action: Action, state: TuningState) -> Iterator[tuple[Time, Event]]:
        yield from super().consequences(now, action, state)
        if type(action) is Put:
            yield from self._profiled(now, action, state)

    def _profiled(self, now: Time, put: Put, state: TuningState) -> Iterator[tuple[Time, Event]]:
        """Yield how far the trial is with its measured runtime: the state would reckon with the old one."""
        row = state.open[put.trial]
        candidate = row.trial.candidate
        profile = self._costs.profile
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
    costs: CostsSection,
    watching: Watching,
    label: str,
) -> Simulation[TuningRecord]:
    """Make the state, the world and the first events of a search."""
    truth.values = lambda candidate: session.candidates[candidate].values
    state = TuningState(costs.moving, truth.usual)
    watch = Watch(state)

    engine = SessionEngine(state, policy, watching.validate, watching.after(watch), session)
    first: list[Event] = [GpusChanged(tuple(range(gpus))), *session.begin(gpus)]
    return Simulation(
        engine,
        [(0, event) for event in first],
        ProfiledWorld(truth, costs),
        lambda end: watch.record(label, session),
    )


def prepare(scenario: TuningScenario, policy: TuningPolicy, watching: Watching) -> Simulation[TuningRecord]:
    """Make the state, the world and the first events of a scenario's search."""
    task = _task_of(scenario)
    truth = Truth(task, scenario.seed)
    session = Session(
        chosen(searches, scenario.search, field="search"),
        sampler_of(scenario.sampler, scenario.space, scenario.goal, scenario.seed),
        truth.worth,
        task.goal,
        scenario.target,
        scenario.space,
    )
    return prepared(truth, session, policy, scenario.gpus, scenario.costs, watching, scenario.policy.name)


def replayed(scenario: TuningScenario, policy: TuningPolicy) -> Engine[Any, Any, Any]:
    """Make an engine that a recorded run is fed into: what its session asked for stands in the recording."""
    usual = None if scenario.task is None else Truth(scenario.task, scenario.seed).usual
    return Engine(TuningState(scenario.costs.moving, usual), policy)


def _task_of(scenario: TuningScenario) -> Task:
    if scenario.task is None:
        expected = "a task beside train: what an iteration takes, and how candidates learn"
        raise InputError("task", None, expected, scenario.source)
    return scenario.task


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
    summarize=report.summarize_run,
    report=report,
    picture="utilization.png",
)
