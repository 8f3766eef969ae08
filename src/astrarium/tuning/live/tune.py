"""Tuning from Python: one call searches from start to end, and its result shows itself.

Where a name will do an object will, and the other way round: `search=Hyperband(iterations=27)`,
`search="hyperband:iterations=27"` and `search={"name": "hyperband", "iterations": 27}` are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from astrarium.core.choice import Choice, as_choice, chosen, made
from astrarium.core.errors import InputError
from astrarium.core.registry import Registry
from astrarium.run.waiting import quiet
from astrarium.tuning.live.live_options import Live, backend_settings, live_options
from astrarium.tuning.live.progress import SearchProgress
from astrarium.tuning.live.run.search import run_local, run_with
from astrarium.tuning.live.run.spec import OnStep, SearchSpec, bounded_spread, limits_of
from astrarium.tuning.live.training.forms import of_one_gpu
from astrarium.tuning.live.training.workers import Build, Emulated
from astrarium.tuning.live.tuned import Tuned, finished
from astrarium.tuning.policies import DEFAULT_POLICY, DEFAULT_SEARCH, TuningPolicy, searches, tuning_policies
from astrarium.tuning.record import TuningRecord
from astrarium.tuning.samplers import Goal, Sampler
from astrarium.tuning.scenario.checks import check_search
from astrarium.tuning.scenario.schema import EngineName, LiveSection
from astrarium.tuning.search.contract import Search

Progress = bool | OnStep


def tune(
    objective: Build | str,
    space: Mapping[str, Any],
    search: Any = DEFAULT_SEARCH,
    policy: Any = DEFAULT_POLICY,
    gpus: int | Sequence[int] | None = None,
    *,
    emulated: Emulated | bool = False,
    sampler: Sampler | str | Mapping[str, Any] | None = None,
    goal: Goal = "min",
    target: float | None = None,
    metric: str = "",
    longest: str | None = None,
    seed: int = 0,
    folder: Path | str | None = None,
    resume: bool = False,
    engine: EngineName = "local",
    live: Live | Mapping[str, Any] | None = None,
    progress: Progress = True,
) -> Tuned:
    """Tune hyperparameters: candidates of a *space* train on the GPUs there are, packed, spread and moved.

    *objective* makes a `Training` of a candidate's values and its `Workers`. A function or class of values
    alone will do, too: one that makes a training, that calls `astrarium.report(value)` after each iteration,
    that yields values, or that returns one. It may be named, "file.py:function". *space* has for each name a
    range, (low, high) or {low, high, log, whole}, or a list of options.
    *search* says who trains for how long, *policy* where: names, specs, mappings, or objects such as
    `Hyperband(iterations=27)` and `DynamicFluid(packed=2)` of `astrarium.tuning`. *gpus*: so many, or these;
    all of this machine unless given.

    *emulated*: no GPU is real, and an iteration takes as long as `Workers.emulate` says. *sampler*: "random",
    "grid", `{"optuna": "TPESampler"}` or a sampler itself. *goal* is "min" or "max"; the search ends with a
    candidate as good as *target*. *metric*: the name of what a candidate is worth, where it reports several
    numbers, `{"loss": ..., "accuracy": ...}`; the others are kept and shown. *longest*: how long an iteration
    may take, with what comes before the first, such as "10min"; a trial beyond it fails. *folder* keeps
    checkpoints and results, and *resume* goes on with what is there. *engine* "ray" takes the GPUs of a Ray
    cluster. *live*: more options, as `Live`. *progress*: True tells how it goes on stderr; a function is
    called with the live search after each step.

    Ctrl-C ends the search, and what it found so far is returned; while processes start, it is a
    KeyboardInterrupt.
    """
    own = {"space": space, "sampler": sampler, "goal": goal, "target": target, "metric": metric}
    spec = specified(search, policy, longest, folder, progress, seed=seed, resume=resume, **own)
    if of_one_gpu(objective):
        spec = replace(spec, policy=bounded_spread(spec.policy, 1))
    record = trained(objective, spec, engine, live, gpus, emulated)
    return finished(record, spec, engine)


def specified(
    search: Any, policy: Any, longest: str | None, folder: Path | str | None, progress: Progress, **own: Any
) -> SearchSpec:
    """Return a search specification; every part is checked before anything is started.

    *own* are the fields of a specification that are taken as they are."""
    return SearchSpec(
        search=_search(search),
        policy=_policy(policy),
        folder=None if folder is None else Path(folder),
        progress=SearchProgress().show if progress is True else progress or None,
        limits=limits_of(longest),
        **own,
    )


def trained(
    build: Build | str,
    spec: SearchSpec,
    engine: str,
    live: Live | Mapping[str, Any] | None,
    gpus: int | Sequence[int] | None,
    emulated: Emulated | bool,
    **more: Any,
) -> TuningRecord:
    """Run a search on this machine or on a Ray cluster; *more* is what only our own functions hand over."""
    if engine not in ("local", "ray"):
        raise InputError("engine", engine, "local or ray")
    kind = Emulated() if emulated is True else emulated or None
    chosen_options = live_options(live)
    settings = {**more, **backend_settings(chosen_options, engine)}
    LiveSection(packing=chosen_options.packing).check(
        "local" if engine == "local" else "ray", kind is not None
    )
    with quiet() if spec.progress is None else nullcontext():
        return _run(build, spec, engine, gpus, kind, settings)


def _run(
    build: Build | str,
    spec: SearchSpec,
    engine: str,
    gpus: int | Sequence[int] | None,
    kind: Emulated | None,
    settings: Mapping[str, Any],
) -> TuningRecord:
    if engine == "local":
        return run_local(build, spec, gpus, kind, **settings)
    from astrarium.tuning.live.ray.backend import RayTrialBackend

    if gpus is not None and not isinstance(gpus, int):
        raise InputError("gpus", gpus, "how many: a Ray cluster says which")
    return run_with(spec, lambda: RayTrialBackend(build, gpus, kind, **spec.of_backend, **settings))


def _search(wanted: Any) -> Choice | Search:
    search: Choice | Search = _chosen(wanted, searches, DEFAULT_SEARCH, "search", "run")
    if isinstance(search, Choice):
        check_search(searches.get(search.name), search.parameters)
    return search


def _policy(wanted: Any) -> Choice | TuningPolicy:
    policy: Choice | TuningPolicy = _chosen(wanted, tuning_policies, DEFAULT_POLICY, "policy", "decide")
    return policy


def _chosen(wanted: Any, registry: Registry[Any], usual: str, field: str, does: str) -> Any:
    """Return a choice of a registry, checked, or the object that was given or made of a class."""
    choice = as_choice(wanted, registry, usual, field)
    if choice is not None:
        chosen(registry, choice, field=field)
        return choice
    thing = made(wanted, None, field=field) if isinstance(wanted, type) else wanted
    if not callable(getattr(thing, does, None)):
        expected = f"a name, name:key=value, a mapping with a name, a class or a {field}"
        raise InputError(field, wanted, expected)
    return thing
