"""Planning asks a placement policy for one size of cluster after another, until every model has its target.

Each plan is judged on several draws of requests that it was not made with. The fewest GPUs are found by
doubling until every model has what it should, then by halving between the last size that fails and the first
that does not; with policies that search, more GPUs may now and then be worse, so the size below the answer
was tried and found wanting, but not every one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from astrarium.core.choice import Choice, made
from astrarium.core.errors import InputError, written_in
from astrarium.placement.plan import Plan, check
from astrarium.placement.policies import Judge, PlacementPolicy, Search, placement_policies
from astrarium.placement.problem import Problem
from astrarium.serving.planned import judge as judging
from astrarium.serving.planning import clusters, plans
from astrarium.serving.planning.clusters import MOST_GPUS, sized
from astrarium.serving.planning.gpu_use import GpuUse, overloaded, uses
from astrarium.serving.planning.known import Known, Slowing, measured_on_v100s
from astrarium.serving.planning.load import Judged, MakeJudge, PlanningLoad, judged
from astrarium.serving.planning.speeds import Speeds
from astrarium.serving.scenario import Scenario

DEFAULT_PLACEMENT = "planner"
HARDLY = 0.001  # attainment that two doublings of the cluster must add, of all requests or of models


@dataclass(frozen=True)
class PlanningGoals:
    """Planning has a goal: a *target* part of every model's requests is in time, with at most *most* GPUs."""

    target: float = 0.99
    seeds: int = 3
    most: int = 512
    known: Known = measured_on_v100s
    interference: Slowing | None = None
    make_judge: MakeJudge | None = None  # by what will really run, unless told otherwise

    def __post_init__(self) -> None:
        if not 0 < self.target <= 1:
            raise InputError("--target", self.target, "a share above 0 and up to 1, such as 99%")
        if not 1 <= self.most <= MOST_GPUS:
            raise InputError("--most", self.most, f"1 to {MOST_GPUS} GPUs")


def placement_policy(choice: Choice, option: str = "--policy") -> PlacementPolicy:
    """Make a placement policy; errors name *option*, where it was written."""
    with written_in(option, choice.name):
        kind = placement_policies.get(choice.name)
    try:
        policy: PlacementPolicy = made(kind, choice.parameters, field="")
    except InputError as error:
        raise InputError(f"-p {error.field}", error.value, error.expected, choice.name) from None
    return policy


@dataclass(frozen=True)
class Attempt:
    """An attempt is a plan for so many GPUs; *judged* is None where an interrupt came first."""

    gpus: int
    problem: Problem
    plan: Plan
    judged: Judged | None
    target: float
    speeds: Speeds | None = None

    @cached_property
    def uses(self) -> tuple[GpuUse, ...]:
        return uses(self.plan, self.problem, self.speeds)

    @cached_property
    def short(self) -> list[int]:
        """Return the models that miss their target, or would in a longer run, worst first."""
        if self.judged is None:
            return []
        below = self.judged.below(self.target)
        return below or overloaded(self.uses, len(self.problem.models), self.target)

    @property
    def met(self) -> bool:
        return self.judged is not None and not self.short

    @property
    def rank(self) -> tuple[bool, int, bool, float, float]:
        """Return a rank, higher for a better answer: enough with few GPUs, else the most in time."""
        if self.judged is None:
            return (False, 0, False, 0.0, self.plan.attainment or 0.0)
        worst = self.judged.models[self.judged.worst].mean
        return (self.met, -self.gpus if self.met else 0, True, worst, self.judged.overall.mean)


@dataclass
class PlanningWatch:
    """The watch hears of every attempt, and passes progress on to *show* where there is one.

    It keeps the best attempt so far, and the best for each number of GPUs.
    """

    show: Callable[[str], None] | None = None
    best: Attempt | None = None
    attempts: list[Attempt] = field(default_factory=list)

    def attempted(self, attempt: Attempt) -> None:
        if self.best is None or attempt.rank > self.best.rank:
            self.best = attempt

    def say(self, text: str) -> None:
        if self.show is not None:
            self.show(f"{text}{self._so_far()}")

    def _so_far(self) -> str:
        if self.best is None or self.best.judged is None:
            return ""
        enough = "enough" if self.best.met else "not enough"
        return f" · best: {self.best.gpus} GPUs, {self.best.judged.overall.mean:.1%} in time, {enough}"


class _SearchReporter(Search):
    """A search reporter shows how far a policy's search has come, and keeps its plans."""

    def __init__(self, watch: PlanningWatch, title: str, keep: Callable[[Plan], None], judge: Judge) -> None:
        super().__init__(judge)
        self._watch = watch
        self._title = title
        self._keep = keep
        self._expects = ""

    def improved(self, plan: Plan) -> None:
        self._keep(plan)
        if plan.attainment is not None:
            self._expects = f", expects {plan.attainment:.1%}"
        self.goes_on()

    def goes_on(self) -> bool:
        self._watch.say(f"{self._title}: {self.count:,} candidates{self._expects}")
        return True


class Planning:
    """Planning is for one scenario and one policy."""

    def __init__(
        self, scenario: Scenario, choice: Choice, goals: PlanningGoals, watch: PlanningWatch | None = None
    ) -> None:
        self.scenario = scenario
        self.choice = choice
        self.goals = goals
        self.watch = watch or PlanningWatch()
        self.load = PlanningLoad(scenario, goals.seeds)
        self.draws = self.load.fresh()
        self._policy = placement_policy(choice)
        self._tried: dict[int, Attempt] = {}

    def problems(self, gpus: int, speeds: Speeds) -> list[Problem]:
        """Return the problems to plan for: several, where there are unequal GPUs to choose from."""
        whole = self.load.posed(plans.problem(sized(self.scenario, gpus)))
        return [self.goals.known(problem) for problem in clusters.selections(whole, gpus, speeds)]

    def judge(self, problem: Problem) -> Judge:
        slowing = self.goals.interference
        scenario = sized(self.scenario, 1 + max(gpu.id for gpu in problem.gpus))
        interference = None if slowing is None else slowing(problem)
        make = self.goals.make_judge or judging.PlanJudge
        return make(scenario, problem, interference, self.load.warmup)

    def attempt(self, gpus: int) -> Attempt:
        if gpus not in self._tried:
            self._tried[gpus] = self._attempt(gpus)
        return self._tried[gpus]

    def _attempt(self, gpus: int) -> Attempt:
        speeds = Speeds(sized(self.scenario, gpus))
        attempts = [self._planned(gpus, problem, speeds) for problem in self.problems(gpus, speeds)]
        best = max(attempts, key=lambda attempt: attempt.rank)  # of equals the first
        self.watch.attempts.append(best)
        return best

    def _planned(self, gpus: int, problem: Problem, speeds: Speeds) -> Attempt:
        judge = self.judge(problem)
        target = self.goals.target
        title = f"{self.choice.label}, {gpus} GPUs"

        def attempted(plan: Plan, judgement: Judged | None = None) -> Attempt:
            attempt = Attempt(gpus, problem, plan, judgement, target, speeds)
            self.watch.attempted(attempt)
            return attempt

        def keep(plan: Plan) -> None:
            attempted(plan)

        plan = self._policy.place(problem, _SearchReporter(self.watch, title, keep, judge))
        check(plan, problem)
        keep(plan)
        self.watch.say(f"{title}: judged")
        return attempted(plan, judged(plan, judge, self.draws))

    def fewest(self) -> Attempt | None:
        """Return the attempt with the fewest GPUs that are enough; None if no number that may be tried is."""
        cluster = self.scenario.cluster.size
        [posed] = self.problems(cluster, Speeds(self.scenario))
        clusters.check_possible(posed)
        low = min(clusters.fewest_possible(posed, self.goals.target), self.goals.most)
        bad, good = self._doubled(low)
        if good is None:
            return None
        while good - bad > 1:
            middle = (bad + good) // 2
            bad, good = (bad, middle) if self.attempt(middle).met else (middle, good)
        return self.attempt(good)

    def _doubled(self, low: int) -> tuple[int, int | None]:
        """Return the last size that fails and the first that does not, by doubling."""
        bad = low - 1
        size = low
        seen = list[float]()
        while not self.attempt(size).met:
            seen.append(self._worth(size))
            helpless = len(seen) > 2 and seen[-1] < seen[-3] + HARDLY
            if size >= self.goals.most or helpless:
                return size, None
            bad = size
            size = min(2 * size, self.goals.most)
        return bad, size

    def _worth(self, size: int) -> float:
        """Return a size's attainment over requests and over models: rare models must not be forgotten."""
        judgement = self.attempt(size).judged
        target = self.goals.target
        if judgement is None:
            return 0.0
        models = judgement.models
        return judgement.overall.mean + sum(min(target, model.mean) for model in models) / len(models)
