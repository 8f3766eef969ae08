"""The answer of `plan` is a plan, what it is worth, what breaks first, and how other policies fare.

An interrupt keeps what was found until then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from astrarium.core.choice import Choice
from astrarium.core.errors import InputError
from astrarium.serving.path_load import path_load
from astrarium.serving.planning.clusters import MOST_GPUS
from astrarium.serving.planning.growth import Growth, growth
from astrarium.serving.planning.search import (
    Attempt,
    Planning,
    PlanningGoals,
    PlanningWatch,
    placement_policy,
)
from astrarium.serving.scenario import Scenario

MOST_ALONE = 3_000_000  # requests that may be looked at to see how far each model can grow alone


@dataclass(frozen=True)
class Rival:
    """A rival is another policy on as many GPUs and the same requests, and the fewest GPUs that it needs."""

    choice: Choice
    same: Attempt
    fewest: Attempt | None


@dataclass(frozen=True)
class Question:
    """A question asks for a plan on so many *gpus* (None: the fewest that are enough).

    *each*: also how far every model can grow alone (None: if that is quickly found).
    """

    gpus: int | None = None
    rivals: tuple[Choice, ...] = ()
    grow: bool = True
    each: bool | None = None

    def __post_init__(self) -> None:
        if self.gpus is not None and not 1 <= self.gpus <= MOST_GPUS:
            raise InputError("--gpus", self.gpus, f"1 to {MOST_GPUS}")


@dataclass
class PlanningAnswer:
    """An answer's *fewest* is None where no number of GPUs that was tried is enough, or nobody asked."""

    scenario: Scenario
    choice: Choice
    goals: PlanningGoals
    question: Question
    chosen: Attempt | None = None
    fewest: Attempt | None = None
    growth: Growth | None = None
    alone: dict[int, Growth] = field(default_factory=dict)
    rivals: list[Rival] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    interrupted: bool = False

    @property
    def rates(self) -> dict[str, float]:
        """Return the requests per second that the chosen plan is for, by model."""
        return {} if self.chosen is None else {one.name: one.rate for one in self.chosen.problem.models}

    @property
    def path(self) -> float | None:
        """Return how many times the load the path of one server carries; None: nobody measured all calls."""
        load = path_load(self.scenario, self.rates)
        return 1 / load if load else None


def answered(
    scenario: Scenario,
    choice: Choice,
    goals: PlanningGoals,
    question: Question,
    watch: PlanningWatch | None = None,
) -> PlanningAnswer:
    for rival in question.rivals:
        placement_policy(rival, "--against")  # nothing is begun that cannot be finished
    watch = watch or PlanningWatch()
    answer = PlanningAnswer(scenario, choice, goals, question, attempts=watch.attempts)
    planning = Planning(scenario, choice, goals, watch)
    others = [Planning(scenario, rival, goals, PlanningWatch(watch.show)) for rival in question.rivals]
    try:
        _fill(answer, planning, others)
    except KeyboardInterrupt:
        answer.interrupted = True
        answer.chosen = answer.chosen or watch.best
    return answer


def _fill(answer: PlanningAnswer, planning: Planning, others: Sequence[Planning]) -> None:
    question = answer.question
    if question.gpus is None:
        answer.fewest = planning.fewest()
        there = min(answer.scenario.cluster.size, answer.goals.most)
        answer.chosen = answer.fewest or planning.attempt(there)
        answer.fewest = answer.chosen if answer.chosen.met else None
    else:
        answer.chosen = planning.attempt(question.gpus)
    if question.grow:
        answer.growth = growth(planning, answer.chosen)
    for other in others:
        answer.rivals.append(Rival(other.choice, other.attempt(answer.chosen.gpus), other.fewest()))
    if others and question.gpus is not None:
        answer.fewest = planning.fewest()  # to stand beside theirs
    if question.grow and _affordable(answer, planning):
        for place in range(len(answer.chosen.problem.models)):
            answer.alone[place] = growth(planning, answer.chosen, place)


def _affordable(answer: PlanningAnswer, planning: Planning) -> bool:
    if answer.question.each is not None:
        return answer.question.each
    models = len(answer.scenario.models)
    looked_at = sum(len(requests.times) for requests in planning.draws) * models * 8
    return models > 1 and looked_at <= MOST_ALONE
