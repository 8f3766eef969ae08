"""A study of Optuna is optimized here: Optuna chooses what to try, Astrarium where it trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astrarium.tuning.live.live_options import Live
from astrarium.tuning.live.run.search import tried
from astrarium.tuning.live.run.spec import bounded_spread
from astrarium.tuning.live.training.workers import Emulated
from astrarium.tuning.live.tune import Progress, specified, trained
from astrarium.tuning.live.tuned import Tuned, finished
from astrarium.tuning.optuna.objective import ObjectiveBuild
from astrarium.tuning.optuna.sampler import OptunaSampler
from astrarium.tuning.policies import DEFAULT_POLICY, DEFAULT_SEARCH

if TYPE_CHECKING:
    import optuna


def optimize(
    study: optuna.Study,
    objective: Callable[[Any], Any] | str,
    search: Any = DEFAULT_SEARCH,
    policy: Any = DEFAULT_POLICY,
    gpus: int | Sequence[int] | None = None,
    *,
    emulated: Emulated | bool = False,
    n_trials: int | None = None,
    pruning: bool = False,
    spread: int = 1,
    target: float | None = None,
    longest: str | None = None,
    seed: int = 0,
    folder: Path | str | None = None,
    resume: bool = False,
    live: Live | Mapping[str, Any] | None = None,
    progress: Progress = True,
) -> Tuned:
    """Run a search for an objective of Optuna whose loop is over `iterations`, as `study.optimize` would.

    The study's sampler chooses, *n_trials* at most, and the study hears what became of each. The iterations
    of *search* are what it gives to the best at most. *pruning*: the study's pruner is asked too, after each
    rung. *spread*: GPUs for a trial at most; above one, the objective must ask for
    `astrarium.tuning.workers()`. All else is that of `astrarium.tune`.
    """
    own = {"target": target, "seed": seed, "resume": resume}
    spec = specified(search, policy, longest, folder, progress, space={}, **own)
    build = ObjectiveBuild(objective)
    sampler = OptunaSampler(study, build.suggest, n_trials, pruning)
    goal = sampler.goal or spec.goal
    spec = replace(spec, sampler=sampler, goal=goal, policy=bounded_spread(spec.policy, spread))
    for values in tried(spec):
        study.enqueue_trial(values)  # a sampler that learns would choose others this time
    record = trained(build, spec, "local", live, gpus, emulated, noted=sampler.note)
    return finished(record, spec, "local")
