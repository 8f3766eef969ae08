"""The sampler takes configurations from an Optuna study, with any sampler and any storage.

The study sees every candidate as a trial of its own, which ends as COMPLETE, PRUNED (others were better, or
the search ended before it did) or FAIL (of an error). The values that candidates report are its
intermediate values, by iterations: samplers such as TPE learn from those of pruned trials too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any

from astrarium.core.errors import InputError
from astrarium.core.optional import from_extra
from astrarium.tuning.samplers import Configuration, Goal, Standing
from astrarium.tuning.spaces import Choice, Range, Values

if TYPE_CHECKING:
    import optuna

    Suggest = Callable[[optuna.Trial], Mapping[str, Any] | None]


# Values on the way may take so much of a search's time, and so many seconds, to reach the study.
REPORTING_SHARE = 0.1
REPORTING_SECONDS = 1.0


class OptunaSampler:
    """The sampler asks a study. *space* is a function that calls the trial's `suggest_...` and may return
    values of its own; or what is chosen from by name, as Optuna's distributions or as ours.

    *most*: asks for so many at most. Without it, a study that stops itself (a grid that is done) has no more.
    *pruning*: where the study's own pruner would stop a candidate after a rung, it is stopped. Searches have
    rungs of their own, and Optuna gives every study a pruner, so that one has to ask for it.
    """

    def __init__(
        self,
        study: optuna.Study,
        space: Suggest | Mapping[str, Any],
        most: int | None = None,
        pruning: bool = False,
    ) -> None:
        with from_extra("tune"):
            import optuna  # noqa: F401
        if len(study.directions) != 1:
            raise InputError("study", study.study_name, "a study with one objective")
        self.goal: Goal | None = "min" if study.direction.name == "MINIMIZE" else "max"
        self._study = study
        self._left = most
        self._pruning = pruning
        self._suggest: Suggest | None = space if callable(space) else None
        self._fixed = None if callable(space) else distributions(space)
        self._trials: dict[int, optuna.Trial] = {}  # that have not ended
        self._asked: list[int] = []  # their numbers, in the order of candidates
        self._began = monotonic()
        self._reporting = 0.0  # seconds, in all

    def ask(self) -> Configuration | None:
        if self._left == 0:
            return None
        self._left = None if self._left is None else self._left - 1
        trial = self._study.ask(self._fixed)
        values = self._suggest(trial) if self._suggest is not None else None
        self._trials[trial.number] = trial
        self._asked.append(trial.number)
        return Configuration(trial.number, dict(trial.params if values is None else values))

    def adopt(self, values: Values) -> Configuration:
        """Add a trial with these values; those that the space does not allow are chosen anew."""
        self._study.enqueue_trial(dict(values))
        left = self._left
        self._left = None
        trial = self.ask()
        self._left = left
        assert trial is not None
        return trial

    def note(self, candidate: int, name: str, value: str) -> None:
        """Set an attribute that the objective has set; *value* as JSON."""
        trial = self._trials.get(self._asked[candidate])
        if trial is not None:
            trial.set_user_attr(name, json.loads(value))

    def observe(self, id: int, iterations: int, value: float) -> None:
        """Report a value on the way, unless that has taken too much of the search's time: a storage on a disk
        takes some 30 ms for each. Pruners are asked at the ends of trials alone: some remember each question.
        """
        now = monotonic()
        if self._reporting < REPORTING_SECONDS + REPORTING_SHARE * (now - self._began):
            self._trials[id].report(value, iterations)
            self._reporting += monotonic() - now

    def report(self, id: int, iterations: int, value: float) -> bool:
        trial = self._trials[id]
        trial.report(value, iterations)
        return self._pruning and trial.should_prune()

    def tell(self, id: int, value: float | None, standing: Standing) -> None:
        from optuna.trial import TrialState

        trial = self._trials.pop(id)
        final = {Standing.COMPLETE: TrialState.COMPLETE, Standing.FAILED: TrialState.FAIL}
        state = final.get(standing, TrialState.PRUNED)
        try:
            self._study.tell(trial, value if state is TrialState.COMPLETE else None, state=state)
        except RuntimeError:
            # A grid that is done stops its study, which Optuna refuses outside of `optimize`; the trial has
            # been told by then.
            if not self._study.trials[id].state.is_finished():
                raise
            self._left = 0


def distributions(space: Mapping[str, Any]) -> dict[str, optuna.distributions.BaseDistribution]:
    """Return our dimensions as Optuna's distributions; its own stay what they are."""
    return {name: _distribution(dimension, f"space.{name}") for name, dimension in space.items()}


def _distribution(dimension: Any, field: str) -> optuna.distributions.BaseDistribution:
    from optuna import distributions as known

    if isinstance(dimension, known.BaseDistribution):
        return dimension
    if isinstance(dimension, Choice):
        return known.CategoricalDistribution(dimension.options)
    if not isinstance(dimension, Range):
        raise InputError(field, dimension, "a range, a choice, or a distribution of Optuna")
    if dimension.whole:
        return known.IntDistribution(int(dimension.low), int(dimension.high), log=dimension.log)
    return known.FloatDistribution(dimension.low, dimension.high, log=dimension.log)
