"""What the sweeps of AlpaServe's section 6 share: the systems, and one knob turned at a time.

A curve is judged in two ways. *Fair*: plans are made with a longer past and judged by requests that came
after it, traffic comes at the rate that it should, and work that was begun goes on when plans change.
*As published*: the authors' ways. Clockwork++ makes a plan for each minute with the requests of that minute,
both ways: so it is in the paper, which means it as a bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import msgspec
import numpy as np

from astrarium.placement.groups.layout import Group, GroupLayout, Tables
from astrarium.placement.groups.runtime import GroupRuntime
from astrarium.placement.groups.simulation import SimulatedRequests, score
from astrarium.placement.plan import Plan
from astrarium.placement.policies import Judge, Search, placement_policies
from astrarium.placement.policies._search_context import (
    Counting,
    SearchContext,
    grouped,
    plan_of,
)
from astrarium.placement.policies._selection import GroupAssignment, fast
from astrarium.placement.problem import PlacementRequests, Problem, Shape
from astrarium_papers.alpaserve._common.cases import AS_PUBLISHED, FAIR, Case, Outcome, Ways, judge, run
from astrarium_papers.alpaserve._common.cases import problem as posed_by
from astrarium_papers.alpaserve._common.panels import ALPASERVE, CLOCKWORK, OURS, REPLICATION
from astrarium_papers.alpaserve._common.served import groups_of
from astrarium_papers.alpaserve._common.windows import Windows
from astrarium_papers.findings import Effort

WAYS: dict[str, Ways] = {"fair": FAIR, "as published": AS_PUBLISHED}

# Plans that are judged fairly know the past, so many times as long as what they are judged by. With less, the
# rarest models are not seen at all.
HISTORY = 5

Placer = Callable[[Case, str, int], list[Outcome]]  # a case, the name of ways, and how many seeds judge
Known = Callable[[Case, str], Problem]


def known(case: Case, ways: str) -> Problem:
    """Return the problem with the requests that a plan is made with."""
    longer = case.seconds * (HISTORY if ways == "fair" else 1)
    return posed_by(msgspec.structs.replace(case, seconds=longer), WAYS[ways])


def apart(groups: Sequence[Group]) -> bool:
    """Return whether no two groups share a GPU: they are served as if they shared none."""
    uses = Counter(gpu for group in groups for gpu in group.gpus)
    return max(uses.values(), default=1) == 1


def judged(case: Case, plan: Plan, ways: str, seeds: int) -> list[Outcome]:
    assert apart(groups_of(plan)), plan
    return [judge(case, plan, WAYS[ways], seed) for seed in range(seeds)]


def counted_as(ways: str) -> dict[str, Any]:
    """Return what searches take from the authors: each stage counts as much as the largest; seconds as
    doubles."""
    return {"memory": "worst-stage", "runtime": {"clock": "seconds"}} if ways == "as published" else {}


def placing(
    policy: str,
    parameters: Mapping[str, Any] | None = None,
    knows: Known = known,
    judged_by: Callable[[Problem], Judge] | None = None,
) -> Placer:
    """Return a placer of one plan, kept whatever comes. *judged_by* tells the search what becomes of a
    plan."""

    def outcomes(case: Case, ways: str, seeds: int) -> list[Outcome]:
        factory: Any = placement_policies.get(policy)
        chosen = msgspec.convert({**counted_as(ways), **(parameters or {})}, factory.Parameters)
        problem = knows(case, ways)
        search = Search(judged_by(problem) if judged_by else None)
        return judged(case, factory(chosen).place(problem, search), ways, seeds)

    return outcomes


def replacing(policy: str) -> Placer:
    """Return a placer of plans that follow each other, made with the requests that are served."""

    def outcomes(case: Case, ways: str, seeds: int) -> list[Outcome]:
        return [run(case, policy, counted_as(ways), WAYS[ways], seed, Windows()) for seed in range(seeds)]

    return outcomes


def greedy(stages: int) -> Placer:
    """Return a placer by Algorithm 1 alone: the fast selection on groups of one shape."""

    def outcomes(case: Case, ways: str, seeds: int) -> list[Outcome]:
        posed = known(case, ways)
        published = ways == "as published"
        counting: Counting = "worst-stage" if published else "stage"
        context = SearchContext.of(posed, GroupRuntime(clock="seconds" if published else "ns"), counting)
        assignment = GroupAssignment(
            context, grouped(posed.gpus, Shape(stages)), np.ones(len(posed.models), bool)
        )
        best = fast(assignment, context.workload, Search())
        return judged(case, plan_of("greedy", context, best.groups, best.served), ways, seeds)

    return outcomes


def searching(knows: Known = known) -> Placer:
    """Return AlpaServe as a placer without the exchanges that ours makes at the end, which the paper
    lacks."""
    return placing("alpaserve", {"refine": 0}, knows)


SYSTEMS: dict[str, Placer] = {
    ALPASERVE: searching(),
    CLOCKWORK: replacing("clockwork++"),
    REPLICATION: placing("selective-replication"),
}


def planner(effort: Effort) -> dict[str, Placer]:
    """Return our own planner, which is judged fairly only."""
    millions = effort.pick(1.0, 30.0)  # of requests to simulate in a search
    return {OURS: placing("planner", {"runtime": {}, "effort": millions}, judged_by=what_runs)}


def what_runs(problem: Problem) -> Judge:
    """Return a judge that lets groups serve in order of arrival."""
    tables = Tables.of(problem.models)

    def attained(plan: Plan, requests: PlacementRequests) -> list[float]:
        groups = groups_of(plan)
        count = len(problem.models)
        if not apart(groups):
            return [0.0] * count
        columns = np.array(requests.times, np.int64), np.array(requests.models, np.int32)
        workload = SimulatedRequests.from_columns(*columns, count)
        good = score(GroupLayout.of(tables, groups), workload).good
        return [float(a / b) if b else 1.0 for a, b in zip(good, workload.totals, strict=True)]

    return attained


class Point(NamedTuple):
    attainment: float  # the mean over seeds
    shapes: dict[str, int]  # groups of the plan (of the first, where it changes)


class Task(NamedTuple):
    """One point of one curve."""

    case: Case
    system: str
    ways: str
    seeds: int

    def __str__(self) -> str:
        case = self.case
        load = f"{case.rate:g}/s, CV {case.cv:g}, SLO {case.slo:g}x"
        return f"{self.system}, {self.ways}: {len(case.models)} models, {case.gpus} GPUs, {load}"


def measured(tasks: Sequence[Task], placers: Mapping[str, Placer], effort: Effort) -> dict[Task, Point]:
    def measure(numbered: tuple[int, Task]) -> Point:
        number, task = numbered
        effort.say(f"{number} of {len(tasks)}: {task}")
        outcomes = placers[task.system](task.case, task.ways, task.seeds)
        shapes = Counter(str(group.shape) for group in groups_of(outcomes[0].plan))
        return Point(fmean(outcome.attainment for outcome in outcomes), dict(shapes))

    return dict(zip(tasks, effort.map(measure, enumerate(tasks, 1)), strict=True))


def turned(case: Case, knob: str, value: float) -> Case:
    return msgspec.structs.replace(case, **{knob: int(value) if knob == "gpus" else float(value)})


class Sweep(NamedTuple):
    """A knob of a case, the values it takes, and the curves to measure: pairs of system and ways."""

    case: Case
    knob: str
    values: Sequence[float]
    curves: Sequence[tuple[str, str]]
    seeds: int = 1  # where it is fair; the authors' way has one

    def tasks(self) -> Iterable[Task]:
        for system, ways in self.curves:
            for value in self.values:
                seeds = self.seeds if ways == "fair" else 1
                yield Task(turned(self.case, self.knob, value), system, ways, seeds)


def swept(
    sweeps: Mapping[str, Sweep], placers: Mapping[str, Placer], effort: Effort
) -> dict[str, dict[str, Any]]:
    """Return, by the name of a sweep, its values, curves[ways][system] and shapes[ways][system]."""
    tasks = dict.fromkeys(task for sweep in sweeps.values() for task in sweep.tasks())
    points = measured(list(tasks), placers, effort)
    return {name: _panel(sweep, points) for name, sweep in sweeps.items()}


def _panel(sweep: Sweep, points: Mapping[Task, Point]) -> dict[str, Any]:
    curves: dict[str, dict[str, list[float]]] = {}
    shapes: dict[str, dict[str, list[dict[str, int]]]] = {}
    for task in sweep.tasks():
        curves.setdefault(task.ways, {}).setdefault(task.system, []).append(points[task].attainment)
        shapes.setdefault(task.ways, {}).setdefault(task.system, []).append(points[task].shapes)
    return {"knob": sweep.knob, "values": list(sweep.values), "curves": curves, "shapes": shapes}
