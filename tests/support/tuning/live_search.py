"""A live search with a backend that is not there, in virtual time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from astrarium.core.choice import made
from astrarium.core.quantities import FOREVER, SECOND, Time
from astrarium.core.trace import Step
from astrarium.testing.tuning_runs import costs_of
from astrarium.tuning.level import Truth
from astrarium.tuning.live.estimates import Estimates
from astrarium.tuning.live.loop.journal import Journal
from astrarium.tuning.live.loop.limits import LiveLimits
from astrarium.tuning.live.loop.live_tuning import LiveTuning, live_tuning
from astrarium.tuning.policies import searches, tuning_policies
from astrarium.tuning.runtime import Runtime
from astrarium.tuning.samplers import Goal, RandomSampler, Standing
from astrarium.tuning.scenario.schema import CostsSection
from astrarium.tuning.scenario.tasks import TASKS
from astrarium.tuning.state import Outcome, TuningState
from tests.support.tuning.fakes import Clock, FakeBackend, play

TASK = TASKS["cifar10-alexnet"]
SMALL: dict[str, dict[str, Any]] = {
    "random": {"candidates": 9, "iterations": 4},
    "successive-halving": {"candidates": 27, "iterations": 27},
    "hyperband": {"iterations": 9},
    "asha": {"candidates": 27, "iterations": 9, "concurrency": 6},
    "pbt": {"population": 6, "iterations": 9, "interval": 3},
}


class TrueEstimates(Estimates):
    """Beliefs that are the truth, once a candidate has trained."""

    def __init__(self, truth: Truth) -> None:
        self._truth = truth
        self._met = set[int]()
        self._unheard = set[int]()

    def seen(self, candidate: int, gpus: int, sharers: float, took: Time, first: bool = False) -> None:
        self._unheard |= {candidate} - self._met

    def news(self) -> dict[int, Runtime]:
        new = self._unheard
        self._unheard = set()
        self._met |= new
        return {number: self._truth.runtime(number) for number in sorted(new)}


class Play:
    """A search on GPUs that are not there. *more* goes to the backend."""

    def __init__(
        self,
        search: str = "random",
        policy: Any = "fifo",
        gpus: int = 4,
        seed: int = 1,
        target: float | None = None,
        journal: Journal | None = None,
        true_estimates: bool = True,
        limits: LiveLimits | None = None,
        costs: CostsSection | None = None,
        settings: dict[str, Any] | None = None,
        moving: Time | None = None,
        goal: Goal = TASK.goal,
        worth: Callable[[int, int], float] | None = None,
        **more: Any,
    ) -> None:
        self.truth = Truth(TASK, seed)
        self.clock = Clock()
        self.costs = costs or costs_of(0, 0)
        self.steps: list[Step] = []
        self.backend = FakeBackend(
            self.clock,
            self.truth.runtime,
            worth or self._worth,
            gpus,
            self.costs.starting,
            self.costs.moving,
            **more,
        )
        chosen = policy
        if isinstance(policy, str):
            chosen = made(tuning_policies.get(policy), None, field="policy")
        self.live: LiveTuning = live_tuning(
            made(searches.get(search), {**SMALL[search], **(settings or {})}, field="search"),
            RandomSampler(self.truth.space, seed),
            chosen,
            self.backend,
            goal,
            target,
            self.truth.space,
            TuningState(self.costs.moving if moving is None else moving, self.truth.usual),
            journal=journal,
            limits=limits or LiveLimits(progress=FOREVER, patience=100_000 * SECOND),
            estimates=TrueEstimates(self.truth) if true_estimates else Estimates(),
            record=self.steps.append,
        )
        self.truth.values = lambda number: self.live.session.candidates[number].values

    def _worth(self, candidate: int, iterations: int) -> float:
        return TASK.value(self.truth._parts(candidate), iterations, self.truth.seed, candidate)

    def go(self, until: Callable[[], bool] | None = None) -> Play:
        play(self.live, self.clock, until=until)
        return self

    def go_seconds(self, seconds: float) -> Play:
        """Something happens then, so that the backend has news."""
        at = round(seconds * SECOND)
        self.backend.at(seconds, lambda: self.backend.change(self.backend.gpus))
        return self.go(lambda: self.clock.now >= at)

    @property
    def rows(self) -> Any:
        return self.live.state.ledger.rows

    def outcomes(self) -> Counter[Outcome]:
        return Counter(row.outcome for row in self.rows.values())

    def endings(self) -> list[Any]:
        return [
            (
                candidate.values,
                candidate.source,
                candidate.standing,
                [(one.iterations, one.value) for one in candidate.history],
            )
            for candidate in self.live.session.candidates.values()
        ]


def all_ended_well(played: Play) -> None:
    session = played.live.session
    assert session.over == "the search is done"
    assert Standing.OPEN not in {candidate.standing for candidate in session.candidates.values()}
    assert not played.live.state.open
    assert played.outcomes()[Outcome.FINISHED] == sum(
        len(candidate.history) for candidate in session.candidates.values()
    )
