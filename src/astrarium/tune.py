"""Tune a model on the GPUs there are: trials are packed on shares of them, spread over several, and moved.

    from astrarium import tune

    record = tune.run(build, space={"rate": {"low": 0.001, "high": 1.0, "log": True}})

*build* makes a `Training` of a candidate's values and its `Workers`. Nothing heavy is imported before a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from astrarium.tuning.live.training import Build, Emulated, Training, Workers, current_workers

if TYPE_CHECKING:
    import optuna
    from ray.tune.schedulers import ResourceChangingScheduler
    from ray.tune.search import Searcher

    from astrarium.tuning.ray_tune.allocation import Allocation
    from astrarium.tuning.record import TuningRecord
    from astrarium.tuning.samplers import Goal, Sampler

__all__ = [
    "Build",
    "Emulated",
    "Training",
    "Workers",
    "fit",
    "fluid_allocation",
    "iterations",
    "optimize",
    "resource_changing",
    "run",
    "workers",
]


def run(
    build: Build | str,
    space: Mapping[str, Any],
    search: str = "successive-halving",
    search_settings: Mapping[str, Any] | None = None,
    sampler: Sampler | str | None = None,
    policy: str = "dynamic-fluid",
    policy_settings: Mapping[str, Any] | None = None,
    gpus: int | Sequence[int] | None = None,
    emulated: Emulated | None = None,
    goal: Goal = "min",
    target: float | None = None,
    seed: int = 0,
    folder: Path | str | None = None,
    resume: bool = False,
    progress: Callable[[Any], None] | None = None,
    longest: str | None = None,
    **backend: Any,
) -> TuningRecord:
    """Search, live, from start to end. *build* may be named: "file.py:function" or "module:function".

    *gpus*: so many, or these; all of this machine unless given. *emulated*: none of them is real, and each
    iteration takes as long as `Workers.emulate` says. *target*: good enough, the search ends there. *folder*
    keeps checkpoints and results, and *resume* goes on with what is there. *progress* is called with the live
    run after each step. *longest*: how long an iteration may take, with what comes before the first, such as
    "10min"; a trial beyond it fails. More settings are those of `LocalBackend`.

    Ctrl-C ends the search, and what it found so far is returned; while the processes start, it is a
    KeyboardInterrupt.
    """
    from astrarium.tuning.live.run import SearchSpec, options, run_local

    kept = None if folder is None else Path(folder)
    spec = SearchSpec(
        space, search, search_settings, sampler, policy, policy_settings, goal, target, seed, kept, resume,
        progress, options(longest),
    )  # fmt: skip
    return run_local(build, spec, gpus, emulated, **backend)


def fit(
    trainable: Any,
    param_space: Mapping[str, Any],
    metric: str,
    mode: Goal = "min",
    searcher: Searcher | None = None,
    search: str = "successive-halving",
    search_settings: Mapping[str, Any] | None = None,
    policy: str = "dynamic-fluid",
    policy_settings: Mapping[str, Any] | None = None,
    spread: int = 1,
    on: Literal["local", "ray"] = "local",
    target: float | None = None,
    seed: int = 0,
    folder: Path | str | None = None,
    resume: bool = False,
    progress: Callable[[Any], None] | None = None,
    longest: str | None = None,
    **backend: Any,
) -> TuningRecord:
    """`run` for a trainable of Ray Tune, as it is: a class, or a function that reports.

    *param_space* as Ray Tune writes it; *searcher* is one of `ray.tune.search`, random unless given. *metric*
    is what candidates are worth, by its name in reports. *spread*: GPUs for a trial at most; above one, the
    trainable must ask for `workers()`. *on* a Ray cluster, or on this machine. *longest* is the most that an
    iteration may take. More settings are those of `RayBackend` and `LocalBackend`.
    """
    from astrarium.tuning.live.run import SearchSpec, options
    from astrarium.tuning.ray_tune.fit import fit as fit_trainable

    kept = None if folder is None else Path(folder)
    spec = SearchSpec(
        {}, search, search_settings, None, policy, policy_settings, mode, target, seed, kept, resume,
        progress, options(longest),
    )  # fmt: skip
    return fit_trainable(trainable, param_space, metric, spec, searcher, spread, on, **backend)


def optimize(
    study: optuna.Study,
    objective: Callable[[Any], Any] | str,
    iterations: int = 27,
    n_trials: int | None = None,
    search: str = "successive-halving",
    search_settings: Mapping[str, Any] | None = None,
    policy: str = "dynamic-fluid",
    policy_settings: Mapping[str, Any] | None = None,
    pruning: bool = False,
    spread: int = 1,
    gpus: int | Sequence[int] | None = None,
    emulated: Emulated | None = None,
    target: float | None = None,
    seed: int = 0,
    folder: Path | str | None = None,
    resume: bool = False,
    progress: Callable[[Any], None] | None = None,
    longest: str | None = None,
    **backend: Any,
) -> TuningRecord:
    """`run` for an objective of Optuna whose loop is over `iterations`, in place of `study.optimize`.

    *iterations*: what the search gives to the best at most. The study's sampler chooses, of *n_trials* at
    most, and the study hears what became of each. *pruning*: its pruner is asked too, after each rung.
    *spread*: GPUs for a trial at most; above one, the objective must ask for `workers()`. *longest* is the
    most that an iteration may take.
    """
    from astrarium.tuning.live.run import SearchSpec, options
    from astrarium.tuning.optuna.objective import optimize as optimize_objective

    kept = None if folder is None else Path(folder)
    settings = {"iterations": iterations, **(search_settings or {})}
    spec = SearchSpec(
        {}, search, settings, None, policy, policy_settings, "min", target, seed, kept, resume, progress,
        options(longest),
    )  # fmt: skip
    return optimize_objective(study, objective, spec, n_trials, pruning, spread, gpus, emulated, **backend)


def iterations(trial: Any, count: int, **objects: Any) -> Iterable[int]:
    """In an objective of Optuna: the numbers of its iterations, from where its checkpoint was written. The
    *objects*, such as model and optimizer, are what that consists of. Where Optuna runs the objective itself,
    range(count)."""
    from astrarium.tuning.optuna.objective import iterations as of_objective

    return of_objective(trial, count, objects)


def workers() -> Workers:
    """In an objective of Optuna or a trainable of Ray Tune: who trains it together. It is alone where those
    libraries run it themselves."""
    return current_workers()


def fluid_allocation(
    iterations: int | Callable[[Mapping[str, Any]], int], policy: str = "dynamic-fluid", **settings: Any
) -> Allocation:
    """For `ray.tune.schedulers.ResourceChangingScheduler`: trials are as wide as *policy* says. *iterations*:
    what a trial has when it is done, or how to tell from its config. More settings are those of
    `Allocation`."""
    from astrarium.tuning.ray_tune.allocation import Allocation

    return Allocation(policy, iterations, **settings)


def resource_changing(
    base: Any, iterations: int | Callable[[Mapping[str, Any]], int], **settings: Any
) -> ResourceChangingScheduler:
    """A scheduler for Ray Tune's own loop: *base*, with resources by `fluid_allocation`. Schedulers that
    would come to a standstill are refused."""
    from astrarium.tuning.ray_tune.allocation import resource_changing

    return resource_changing(base, fluid_allocation(iterations, **settings))
