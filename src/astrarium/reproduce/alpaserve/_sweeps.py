"""What the sweeps of AlpaServe's section 6 share: the systems, one knob turned at a time, where 99 % is met.

A curve is judged in two ways. *Fair*: plans are made with a longer past and judged by requests that came
after it, traffic comes at the rate that it should, and work that was begun goes on when plans change.
*As published*: the authors' ways.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import msgspec
import numpy as np

from astrarium.experiments.alpaserve import AS_PUBLISHED, FAIR, Case, Outcome, Ways, judge, problem, run
from astrarium.reproduce.findings import Effort
from astrarium.serving.placement.groups import Runtime, groups_of
from astrarium.serving.placement.plan import Plan
from astrarium.serving.placement.policies._ground import Counting, Going, Ground, plan_of
from astrarium.serving.placement.policies._partition import grouped
from astrarium.serving.placement.policies._selection import Board, fast
from astrarium.serving.placement.problem import Problem, Shape
from astrarium.serving.placement.registry import Patient, placement_policies

ALPASERVE, CLOCKWORK, REPLICATION, OURS = "AlpaServe", "Clockwork++", "SR", "Planner"
COLORS = {ALPASERVE: "#0072B2", CLOCKWORK: "#D55E00", REPLICATION: "#009E73", OURS: "#000000"}
WAYS: dict[str, Ways] = {"fair": FAIR, "as published": AS_PUBLISHED}
GOAL = 0.99
NOISE = 0.005  # what a few hundred seconds of bursts cannot tell apart
LABELS = {"gpus": "GPUs", "rate": "requests/s", "cv": "CV", "slo": "SLO scale"}
MORE_HELPS = {"gpus": True, "rate": False, "cv": False, "slo": True}

# Plans that are judged fairly know the past, so many times as long as what they are judged by. With less, the
# rarest models are not seen at all.
HISTORY = 5

Placer = Callable[[Case, str, int], list[Outcome]]  # a case, the name of ways, and how many seeds judge
Known = Callable[[Case, str], Problem]


def known(case: Case, ways: str) -> Problem:
    """With the requests that a plan is made with."""
    longer = case.seconds * (HISTORY if ways == "fair" else 1)
    return problem(msgspec.structs.replace(case, seconds=longer), WAYS[ways])


def judged(case: Case, plan: Plan, ways: str, seeds: int) -> list[Outcome]:
    """Groups are served as if they shared no GPU, so none may."""
    taken = Counter(gpu for group in groups_of(plan) for gpu in group.gpus)
    assert max(taken.values(), default=1) == 1, plan
    return [judge(case, plan, WAYS[ways], seed) for seed in range(seeds)]


def counted_as(ways: str) -> dict[str, Any]:
    """What searches take from the authors: each stage counts as much as the largest; seconds as doubles."""
    return {"memory": "worst-stage", "runtime": {"clock": "seconds"}} if ways == "as published" else {}


def placing(policy: str, parameters: Mapping[str, Any] | None = None, knows: Known = known) -> Placer:
    """One plan, kept whatever comes."""

    def outcomes(case: Case, ways: str, seeds: int) -> list[Outcome]:
        factory: Any = placement_policies.get(policy)
        chosen = msgspec.convert({**counted_as(ways), **(parameters or {})}, factory.Parameters)
        return judged(case, factory(chosen).place(knows(case, ways), Patient()), ways, seeds)

    return outcomes


def replacing(policy: str) -> Placer:
    """Plans that follow each other, made with the requests that are served."""

    def outcomes(case: Case, ways: str, seeds: int) -> list[Outcome]:
        return [run(case, policy, counted_as(ways), WAYS[ways], seed) for seed in range(seeds)]

    return outcomes


def greedy(stages: int) -> Placer:
    """Algorithm 1 alone: the fast selection on groups of one shape."""

    def outcomes(case: Case, ways: str, seeds: int) -> list[Outcome]:
        posed = known(case, ways)
        published = ways == "as published"
        counting: Counting = "worst-stage" if published else "stage"
        ground = Ground.of(posed, Runtime(clock="seconds" if published else "ns"), counting)
        board = Board(ground, grouped(posed.gpus, Shape(stages)), np.ones(len(posed.models), bool))
        found = fast(board, ground.workload, Going(Patient()))
        return judged(case, plan_of("greedy", ground, found.groups, found.served), ways, seeds)

    return outcomes


def searching(knows: Known = known) -> Placer:
    """AlpaServe without the exchanges that ours makes at the end, which the paper lacks."""
    return placing("alpaserve", {"refine": 0}, knows)


SYSTEMS: dict[str, Placer] = {
    ALPASERVE: searching(),
    CLOCKWORK: replacing("clockwork++"),
    REPLICATION: placing("selective-replication"),
}


def planner(effort: Effort) -> dict[str, Placer]:
    """Our own, told what will run: groups that serve in order of arrival. It is judged fairly only."""
    millions = effort.pick(1.0, 30.0)  # of requests to simulate in a search
    return {OURS: placing("planner", {"runtime": {}, "effort": millions})}


class Point(NamedTuple):
    attainment: float  # the mean over seeds
    shapes: dict[str, int]  # groups of the plan (of the first, where it changes)


class Task(NamedTuple):
    """One point of one curve."""

    case: Case
    system: str
    ways: str
    seeds: int


def measured(tasks: Sequence[Task], placers: Mapping[str, Placer], effort: Effort) -> dict[Task, Point]:
    def one(task: Task) -> Point:
        case = task.case
        effort.say(
            f"{len(case.models)} models, {case.gpus} GPUs, {case.rate:g}/s: {task.system}, {task.ways}"
        )
        found = placers[task.system](case, task.ways, task.seeds)
        shapes = Counter(str(group.shape) for group in groups_of(found[0].plan))
        return Point(fmean(outcome.attainment for outcome in found), dict(shapes))

    return dict(zip(tasks, effort.each(one, tasks), strict=True))


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
    """By the name of a sweep: its values, curves[ways][system] and shapes[ways][system]."""
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


def reach(values: Sequence[float], attained: Sequence[float], more_helps: bool) -> float | None:
    """The hardest value that meets 99 %, on a line to the next harder one, which does not. None: no value
    does."""
    hardest_first = sorted(zip(values, attained, strict=True), reverse=not more_helps)
    before: tuple[float, float] | None = None
    for value, share in hardest_first:
        if share >= GOAL:
            if before is None:
                return value
            harder, short = before
            return harder + (value - harder) * (GOAL - short) / (share - short)
        before = (value, share)
    return None


class Gain(NamedTuple):
    """*bound*: the rival met 99 % nowhere, so that the true number is larger."""

    times: float
    bound: bool

    def __str__(self) -> str:
        return f"{'over ' * self.bound}{self.times:.2f}x"


def gain(panel: Mapping[str, Any], ways: str, system: str, rival: str) -> Gain | None:
    """How many times fewer GPUs, higher rate, burstier traffic, or tighter objective *system* does with.
    None: it meets 99 % nowhere itself."""
    ours, theirs = (reached(panel, ways, name) for name in (system, rival))
    if ours is None:
        return None
    helps = MORE_HELPS[panel["knob"]]
    easiest = max(panel["values"]) if helps else min(panel["values"])
    theirs, bound = (easiest, True) if theirs is None else (theirs, False)
    return Gain(theirs / ours if helps else ours / theirs, bound)


def reached(panel: Mapping[str, Any], ways: str, system: str) -> float | None:
    return reach(panel["values"], panel["curves"][ways][system], MORE_HELPS[panel["knob"]])


def behind_of(
    panels: Mapping[str, Any], ways: str, system: str, rivals: Sequence[str]
) -> tuple[list[str], int]:
    """Where *system* is behind the best of its rivals, in words, and how many points there are."""
    behind, points = [], 0
    for name, panel in panels.items():
        curves = panel["curves"][ways]
        best = [max(shares) for shares in zip(*(curves[rival] for rival in rivals), strict=True)]
        for value, ours, theirs in zip(panel["values"], curves[system], best, strict=True):
            points += 1
            if ours < theirs - NOISE:
                behind.append(f"{name} {value:g}: {ours:.3f} to {theirs:.3f}")
    return behind, points


def spelled(value: float | None) -> str:
    return "nowhere" if value is None else f"{value:.3g}"


def draw_panel(axis: Any, panel: Mapping[str, Any], colors: Mapping[str, str], title: str) -> None:
    """Fair curves are solid, those as published dotted; 99 % is a line."""
    for ways, style in (("fair", "-"), ("as published", ":")):
        for system, attained in panel["curves"].get(ways, {}).items():
            percent = [100 * share for share in attained]
            label = f"{system}, {ways}" if ways != "fair" else system
            axis.plot(
                panel["values"],
                percent,
                ls=style,
                marker="o",
                markersize=3,
                color=colors[system],
                label=label,
            )
    axis.axhline(100 * GOAL, color="#999999", lw=0.8)
    axis.set(xlabel=LABELS[panel["knob"]], title=title)
