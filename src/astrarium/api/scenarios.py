"""Scenarios come from files or plain data, and policies by name, by class or as objects."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from astrarium.core.choice import Choice, WrittenScenario, as_choice, made, parameters_of
from astrarium.core.errors import InputError, read_from
from astrarium.core.level import Level, Scenario
from astrarium.core.overrides import changed
from astrarium.core.plain_data import as_plain, read_yaml
from astrarium.levels import level_of, named_by
from astrarium.run.experiment import variants

Source = str | Path | Mapping[str, Any] | Scenario
FORM = "a name, name:key=value, a mapping with a name, a class or a policy object"


def load(
    source: str | Path | Mapping[str, Any], overrides: Mapping[str, Any] | None = None, **fields: Any
) -> Scenario:
    """Load a scenario of any level, from a file or from the same as plain data.

    *overrides* changes fields by their dotted names, `{"policy.name": "eager"}`, and keywords change those at
    the top: `load("scenario.yaml", seed=3)`. Every value is checked as one in the file would be. Files that
    plain data names are looked for in the current folder.
    """
    raw, path = read(source)
    name = "" if isinstance(source, Mapping) else str(path)
    with read_from(name):
        level = named_by(raw, name)
        changes = as_plain({**(overrides or {}), **fields})
        scenario: Scenario = level.parse(changed(raw, changes, level.named), path)
    return scenario


def read(source: str | Path | Mapping[str, Any]) -> tuple[Any, Path]:
    """Return plain data, and where files are looked for that it names."""
    if isinstance(source, Mapping):
        return as_plain(source), Path("scenario.yaml")
    if not isinstance(source, str | Path):
        expected = "a file, a mapping such as a file holds, or a scenario"
        raise InputError("scenario", type(source).__name__, expected)
    return read_yaml(Path(source)), Path(source)


def as_scenario(source: Source) -> Scenario:
    """Return a scenario as it is, or load it."""
    if isinstance(source, str | Path | Mapping):
        return load(source)
    level_of(source)  # anything else is refused
    return source


class Decider(NamedTuple):
    """Who decides in a run: a scenario that says so, and the policy itself where no registry can make it."""

    scenario: Scenario
    label: str
    policy: Any = None


def decider(level: Level[Any, Any], scenario: Scenario, policy: Any) -> Decider:
    """Return who decides: None is the scenario's own, all else is what `simulate` takes."""
    if policy is None:
        return Decider(scenario, scenario.policy.label)
    choice = as_choice(policy, level.policies, level.default)
    if choice is not None:
        [(label, variant)] = variants(level, scenario, [choice]).items()
        return Decider(variant, label)
    if not isinstance(policy, type):
        _check_decides(policy)
        name = type(policy).__name__
        return Decider(_renamed(scenario, name), name, policy)
    arguments = level.policy_arguments(scenario)
    _check_made(policy, arguments)
    return Decider(_renamed(scenario, policy.__name__), policy.__name__, made(policy, None, *arguments))


def _check_made(kind: type, arguments: tuple[Any, ...]) -> None:
    """Refuse a class that cannot be made as a level makes its policies."""
    try:
        inspect.signature(kind).bind(*arguments, parameters_of(kind))
    except TypeError as error:
        names = ", ".join([*(type(argument).__name__.lower() for argument in arguments), "parameters"])
        raise InputError("policy", kind.__name__, f"a class made with ({names}): {error}") from None


def _check_decides(policy: Any) -> None:
    if not any(callable(getattr(policy, name, None)) for name in ("decide", "allocate")):
        raise InputError("policy", type(policy).__name__, FORM)


def _renamed(scenario: Scenario, name: str) -> Scenario:
    """Return the scenario with a policy's name that no registry knows, which reports then show."""
    struct: Any = scenario
    fields: dict[str, Any] = {"policy": Choice(name)}
    if isinstance(scenario, WrittenScenario):
        fields["raw"] = {**scenario.raw, "policy": {"name": name}}
    renamed: Scenario = msgspec.structs.replace(struct, **fields)
    return renamed
