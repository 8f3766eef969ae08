"""A search of ours takes Ray Tune's trainables and search spaces, on this machine or a Ray cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from astrarium.core.errors import InputError
from astrarium.core.optional import from_extra
from astrarium.tuning.live.live_options import Live
from astrarium.tuning.live.run.spec import bounded_spread
from astrarium.tuning.live.training.workers import Emulated
from astrarium.tuning.live.tune import Progress, specified, trained
from astrarium.tuning.live.tuned import Tuned, finished
from astrarium.tuning.policies import DEFAULT_POLICY, DEFAULT_SEARCH
from astrarium.tuning.ray_tune.sampler import RayTuneSampler
from astrarium.tuning.ray_tune.trainables import trainable_build
from astrarium.tuning.samplers import Goal
from astrarium.tuning.scenario.schema import EngineName
from astrarium.tuning.spaces import Choice, Range, space_of

if TYPE_CHECKING:
    from ray.tune.search import Searcher

PRELOAD = ("ray.tune",)  # which takes seconds to import


class SplitSpace(NamedTuple):
    """A search space of Ray Tune is split: what our samplers can choose; what only a searcher of Ray Tune can
    choose; and what is the same for all candidates."""

    chosen: dict[str, Range | Choice]
    foreign: dict[str, Any]
    fixed: dict[str, Any]


def fit(
    trainable: Any,
    param_space: Mapping[str, Any],
    metric: str,
    mode: Goal = "min",
    searcher: Searcher | None = None,
    search: Any = DEFAULT_SEARCH,
    policy: Any = DEFAULT_POLICY,
    gpus: int | Sequence[int] | None = None,
    *,
    emulated: Emulated | bool = False,
    spread: int = 1,
    target: float | None = None,
    longest: str | None = None,
    seed: int = 0,
    folder: Path | str | None = None,
    resume: bool = False,
    engine: EngineName = "local",
    live: Live | Mapping[str, Any] | None = None,
    progress: Progress = True,
) -> Tuned:
    """Run a search for a trainable of Ray Tune as it is: a class, or a function that reports.

    *param_space* is written as Ray Tune writes it; *searcher* is one of `ray.tune.search`, random unless
    given. *metric* is what candidates are worth, by its name in reports. *spread*: GPUs for a trial at most;
    above one, the trainable must ask for `astrarium.tuning.workers()`. All else is that of `astrarium.tune`.
    """
    own = {"goal": mode, "target": target, "seed": seed, "resume": resume}
    spec = specified(search, policy, longest, folder, progress, space={}, **own)
    space = split(param_space)
    build = trainable_build(trainable, metric, space.fixed)
    spec = replace(
        spec,
        space=space.chosen,
        sampler=_sampler(space, searcher, spec.goal, metric),
        policy=bounded_spread(spec.policy, spread),
    )
    return finished(trained(build, spec, engine, live, gpus, emulated, preload=PRELOAD), spec, engine)


def split(param_space: Mapping[str, Any]) -> SplitSpace:
    space = SplitSpace({}, {}, {})
    for name, written in param_space.items():
        ours = dimension(written, f"param_space.{name}")
        if ours is not None:
            space.chosen[name] = ours
        elif _is_domain(written):
            space.foreign[name] = written
        else:
            space.fixed[name] = written
    return space


def dimension(written: Any, field: str) -> Range | Choice | None:
    """Return a dimension in our form; None where that is impossible, or where nothing is to be chosen."""
    if isinstance(written, Range | Choice):
        return written
    if isinstance(written, Mapping):
        if "grid_search" in written:
            return Choice(tuple(written["grid_search"]))
        wanted = "options" in written or {"low", "high"} <= written.keys()
        return space_of({field: written}, "")[field] if wanted else None
    return _of_ray(written)


def _of_ray(domain: Any) -> Range | Choice | None:
    with from_extra("tune"):
        from ray.tune.search.sample import Categorical, Float, Integer
    if isinstance(domain, Categorical):
        return Choice(tuple(domain.categories))
    whole = isinstance(domain, Integer)
    how = str(domain.sampler) if whole or isinstance(domain, Float) else ""
    if how not in ("Uniform", "LogUniform"):
        return None
    high = domain.upper - 1 if whole else domain.upper  # Ray Tune leaves it out
    return Range(float(domain.lower), float(high), how == "LogUniform", whole)


def _is_domain(written: Any) -> bool:
    from ray.tune.search.sample import Domain

    return isinstance(written, Domain)


def _sampler(space: SplitSpace, searcher: Searcher | None, goal: Goal, metric: str) -> RayTuneSampler | None:
    if searcher is not None:
        return RayTuneSampler(searcher, {**space.chosen, **space.foreign} or None, goal, metric)
    for name, domain in space.foreign.items():
        expected = (
            "uniform, loguniform, randint, lograndint, choice, grid_search, or a searcher that knows it"
        )
        raise InputError(f"param_space.{name}", domain, expected)
    return None
