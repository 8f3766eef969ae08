"""Scenarios of any level are simulated here, one run or several side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Literal

from astrarium.core.choice import Choice
from astrarium.core.errors import InputError
from astrarium.core.level import Level, R, Run, S, Watching
from astrarium.core.quantities import Time
from astrarium.run.simulate import simulate as drive

EngineName = Literal["auto", "python", "native"]  # the command line checks nothing: `simulate` does
Progress = Callable[[Time], None]
Bar = Callable[[str, Time], AbstractContextManager[Progress | None]]  # from a title and a length
REFERENCE_ONLY = "python: only the reference engine records traces and validates"


def simulate(
    level: Level[S, Any],
    scenario: S,
    policy: Any = None,
    label: str = "",
    engine: EngineName | str = "auto",
    bar: Bar | None = None,
    watching: Watching | None = None,
) -> Run[S, Any]:
    """Run a scenario in virtual time, by its own policy unless another object is handed over."""
    label = label or scenario.policy.label
    shown = None if bar is None else partial(bar, f"simulating {label}")
    record = recorded(level, scenario, policy, engine, shown, watching)
    return Run(level, scenario, label, record, level.summarize(scenario, record))


def recorded(
    level: Level[S, R],
    scenario: S,
    policy: Any = None,
    engine: EngineName | str = "auto",
    bar: Callable[[Time], AbstractContextManager[Progress | None]] | None = None,
    watching: Watching | None = None,
) -> R:
    """Return the record of a run in virtual time; *bar* shows progress, of a run of some length.

    The native twin decides where the policy has one and nobody watches; it decides the same, sooner.
    """
    watching, shown = watching or Watching(), bar or (lambda length: nullcontext())
    decider = level.policy(scenario) if policy is None else policy
    if _native_wanted(engine, level, watching):
        assert level.twin is not None
        with shown(level.length(scenario)) as progress:
            record = level.twin(scenario, decider, progress)
        if record is not None:
            return record
        if engine == "native":
            name = type(decider).__name__
            raise InputError("engine", engine, f"python: {name} has no native twin for this scenario")
    ready = level.prepare(scenario, decider, watching)
    with shown(ready.length) as progress:
        end = drive(ready.engine, ready.arrivals, ready.world, progress)
    return ready.record(end)


def _native_wanted(engine: str, level: Level[Any, Any], watching: Watching) -> bool:
    if engine not in ("auto", "python", "native"):
        raise InputError("engine", engine, "one of auto, python, native")
    watched = watching.trace is not None or watching.validate
    if engine == "native" and (level.twin is None or watched):
        expected = REFERENCE_ONLY if watched else f"auto or python: {level.subject} have no native twin"
        raise InputError("engine", engine, expected)
    return level.twin is not None and engine != "python" and not watched


def variants(level: Level[S, Any], scenario: S, choices: Iterable[Choice]) -> dict[str, S]:
    """Return a scenario for each choice of a policy, all of them checked before the first is run."""
    by_label = {}
    for choice in choices:
        own = choice == Choice(scenario.policy.name) or choice == scenario.policy
        variant = scenario if own else scenario.with_policy(choice.name, **choice.parameters)
        level.policy(variant)
        by_label[choice.label] = variant
    return by_label
