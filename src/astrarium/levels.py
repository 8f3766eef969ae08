"""The four levels by name, and which of them a file is about. A level is imported when it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from astrarium.core.errors import InputError, one_of, read_from
from astrarium.core.level import Level, Scenario
from astrarium.core.overrides import overridden
from astrarium.core.plain_data import read_yaml

# Sections that only one level's files have.
SECTIONS = {"serving": ("models",), "device": ("jobs",), "tuning": ("task", "train"), "cluster": ("apps",)}
SUBJECTS = {
    "serving": "cluster, models and workload (requests to serve)",
    "device": "gpu and jobs (jobs on one GPU)",
    "tuning": "a task or train, and a search (trials of a search)",
    "cluster": "machines and apps (apps on a cluster)",
}


def level(name: str) -> Level[Any, Any]:
    """Import a level and return it; an error lists the names that there are."""
    if name not in SECTIONS:
        raise InputError("level", name, one_of(list(SECTIONS), name))
    loaded: Level[Any, Any] = importlib.import_module(f"astrarium.{name}.level").LEVEL
    return loaded


def level_of(scenario: object) -> Level[Any, Any]:
    """Return the level of a scenario that was loaded; all else is refused, such as a policy in its place."""
    if not isinstance(scenario, Scenario):
        raise InputError("scenario", type(scenario).__name__, "a scenario, as astrarium.load returns it")
    return level(scenario.level)


def named_by(raw: Any, source: str) -> Level[Any, Any]:
    """Return the level that a file is about, told by the sections it has."""
    name = name_of(raw)
    if name is not None:
        return level(name)
    value = ", ".join(map(str, raw)) if isinstance(raw, dict) and raw else raw or "nothing"
    raise InputError("", value, f"a scenario: {'; or '.join(SUBJECTS.values())}", source)


def name_of(raw: Any) -> str | None:
    """Return the name of the level that a file is about; None if it has no section that tells."""
    there = raw if isinstance(raw, dict) else {}
    names = (name for name, sections in SECTIONS.items() if any(section in there for section in sections))
    return next(names, None)


def load(path: str | Path, overrides: Sequence[str] = ()) -> Scenario:
    """Read a scenario file of any level, with `-o` overrides such as 'policy.name=eager'."""
    raw = read_yaml(Path(path))
    level = named_by(raw, str(path))
    with read_from(path):
        scenario: Scenario = level.parse(overridden(raw, overrides, level.named), Path(path))
    return scenario
