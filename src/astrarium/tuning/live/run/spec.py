"""A search specification says what is to be searched, and how, before anything is started."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astrarium.core.choice import Choice, chosen, parameters_of
from astrarium.core.errors import InputError
from astrarium.core.plain_data import as_plain
from astrarium.core.quantities import check_above_zero, duration_in
from astrarium.tuning.live.loop.limits import LiveLimits
from astrarium.tuning.live.loop.live_tuning import LiveTuning
from astrarium.tuning.policies import DEFAULT_POLICY, DEFAULT_SEARCH, TuningPolicy, searches, tuning_policies
from astrarium.tuning.samplers import Goal, Sampler
from astrarium.tuning.scenario.sampler import sampler_of, sampler_section
from astrarium.tuning.search.contract import Search
from astrarium.tuning.spaces import Space, space_of

OnStep = Callable[[LiveTuning], None]


@dataclass(frozen=True)
class SearchSpec:
    """A search specification says what is to be searched, and how; `astrarium.tune` explains each field."""

    space: Mapping[str, Any]
    search: Choice | Search = Choice(DEFAULT_SEARCH)  # noqa: RUF009 (it is frozen)
    sampler: Sampler | str | Mapping[str, Any] | None = None
    policy: Choice | TuningPolicy = Choice(DEFAULT_POLICY)  # noqa: RUF009
    goal: Goal = "min"
    target: float | None = None
    metric: str = ""
    seed: int = 0
    folder: Path | None = None
    resume: bool = False
    progress: OnStep | None = None
    limits: LiveLimits | None = None

    @property
    def of_backend(self) -> dict[str, Any]:
        """Return what a trial backend must know of the search."""
        names = ("folder", "seed", "goal", "target", "metric")
        return {name: getattr(self, name) for name in names}

    @property
    def label(self) -> str:
        """Return the policy's name as reports show it."""
        return self.policy.label if isinstance(self.policy, Choice) else type(self.policy).__name__


@dataclass(frozen=True)
class CheckedSearch:
    """Everything that a specification names has been made; no process was started, and nothing written."""

    search: Search
    sampler: Sampler
    policy: TuningPolicy
    space: Space


def limits_of(longest: str | None) -> LiveLimits:
    """Return limits with the one on an iteration, as a file has it under `live`: `90s`; None: no limit."""
    if longest is None:
        return LiveLimits()
    duration = duration_in("longest", longest)
    check_above_zero("longest", duration)
    return LiveLimits(longest=duration)


def bounded_spread(policy: Choice | TuningPolicy, spread: int) -> Choice | TuningPolicy:
    """Bound the GPUs of a trial to *spread*, where the policy has that parameter, for trainings that may
    ignore workers and would do the same on all GPUs."""
    if not isinstance(policy, Choice):
        return policy
    known = "spread" in parameters_of(tuning_policies.get(policy.name)).__struct_fields__
    return Choice(policy.name, {**({"spread": spread} if known else {}), **policy.parameters})


def checked_search(spec: SearchSpec) -> CheckedSearch:
    if spec.goal not in ("min", "max"):
        raise InputError("goal", spec.goal, "min or max")
    space = space_of(spec.space)
    search = spec.search
    policy = spec.policy
    return CheckedSearch(
        search=chosen(searches, search, field="search") if isinstance(search, Choice) else search,
        sampler=_sampler(spec, space),
        policy=chosen(tuning_policies, policy) if isinstance(policy, Choice) else policy,
        space=space,
    )


def _sampler(spec: SearchSpec, space: Space) -> Sampler:
    """Return the sampler itself, or the one that is written as in a file."""
    if not isinstance(spec.sampler, str | Mapping | None):
        return spec.sampler
    search = spec.search.name if isinstance(spec.search, Choice) else ""
    return sampler_of(sampler_section(as_plain(spec.sampler), search), space, spec.goal, spec.seed)
