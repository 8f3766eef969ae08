"""What `plan` answers: a plan, what it is worth, what breaks first, how others fare. An interrupt keeps what
was found until then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from astrarium.core.errors import InputError
from astrarium.experiments.planning.cluster import MOST_GPUS
from astrarium.experiments.planning.growth import Growth, growth
from astrarium.experiments.planning.search import Attempt, Choice, Planning, Watch, Wishes
from astrarium.scenario import Scenario

MOST_ALONE = 3_000_000  # requests that may be looked at to see how far each model can grow alone


@dataclass(frozen=True)
class Rival:
    """Another policy on as many GPUs and on the same requests, and the fewest that it needs itself."""

    choice: Choice
    same: Attempt
    fewest: Attempt | None


@dataclass(frozen=True)
class Question:
    """*gpus*: so many; None: the fewest that are enough. *each*: how far every model can grow alone; None:
    if that is quickly found."""

    gpus: int | None = None
    rivals: tuple[Choice, ...] = ()
    grow: bool = True
    each: bool | None = None

    def __post_init__(self) -> None:
        if self.gpus is not None and not 1 <= self.gpus <= MOST_GPUS:
            raise InputError("--gpus", self.gpus, f"1 to {MOST_GPUS}")


@dataclass
class Answer:
    """*fewest*: None where no number that was tried is enough, or nobody asked."""

    scenario: Scenario
    choice: Choice
    wishes: Wishes
    question: Question
    chosen: Attempt | None = None
    fewest: Attempt | None = None
    growth: Growth | None = None
    alone: dict[int, Growth] = field(default_factory=dict)
    rivals: list[Rival] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    interrupted: bool = False


def answered(
    scenario: Scenario, choice: Choice, wishes: Wishes, question: Question, watch: Watch | None = None
) -> Answer:
    for rival in question.rivals:
        rival.made("--against")  # nothing is begun that cannot be finished
    watch = watch or Watch()
    answer = Answer(scenario, choice, wishes, question, attempts=watch.attempts)
    planning = Planning(scenario, choice, wishes, watch)
    others = [Planning(scenario, rival, wishes, Watch(watch.show)) for rival in question.rivals]
    try:
        _fill(answer, planning, others)
    except KeyboardInterrupt:
        answer.interrupted = True
        answer.chosen = answer.chosen or watch.best
    return answer


def _fill(answer: Answer, planning: Planning, others: Sequence[Planning]) -> None:
    question = answer.question
    if question.gpus is None:
        answer.fewest = planning.fewest()
        there = min(answer.scenario.cluster.size, answer.wishes.most)
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


def _affordable(answer: Answer, planning: Planning) -> bool:
    if answer.question.each is not None:
        return answer.question.each
    models = len(answer.scenario.models)
    looked_at = sum(len(requests.times) for requests in planning.draws) * models * 8
    return models > 1 and looked_at <= MOST_ALONE
