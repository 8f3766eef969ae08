"""Scenario files whose subject is a search for hyperparameters: read, overridden, checked in every part.

task: cifar10-alexnet
search: {name: hyperband, iterations: 27}
gpus: 8
policy: {name: dynamic-fluid}

With `train: file.py:function` in place of a task the search runs live. A file may have both.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from astrarium.core.choice import DEFAULT_SEED, Choice, Seed, WrittenScenario, read_policy
from astrarium.core.decode import Decoder, check_keys, keys_of
from astrarium.core.errors import InputError, one_of
from astrarium.tuning.live.training.workers import Emulated
from astrarium.tuning.policies import DEFAULT_POLICY, DEFAULT_SEARCH, searches, tuning_policies
from astrarium.tuning.samplers import Goal
from astrarium.tuning.scenario import schema
from astrarium.tuning.scenario.tasks import Task, check_fits, goal_of, named_or_written
from astrarium.tuning.spaces import Space, space_of

# What fits field by field and still makes no sense together.


MOST_CANDIDATES = 100_000


def check_search(kind: Any, settings: Mapping[str, Any]) -> None:
    """Searches share the names of their settings: what they mean together is the same for all."""
    all_of = msgspec.structs.asdict(Decoder().decode_struct(kind.Parameters, dict(settings), "search"))
    for name in ("candidates", "population"):
        if all_of.get(name, 0) > MOST_CANDIDATES:
            raise InputError(f"search.{name}", all_of[name], f"at most {MOST_CANDIDATES:,}")
    iterations = all_of.get("iterations", 1)
    eta = all_of.get("eta", 1)
    if iterations < eta:
        expected = f"at least eta ({eta}): with fewer there is one rung only, and nobody is stopped"
        raise InputError("search.iterations", iterations, expected)
    if all_of.get("smallest", 1) * eta > iterations:
        expected = f"at most {iterations // eta}, one in eta ({eta}) of the iterations ({iterations})"
        raise InputError("search.smallest", all_of["smallest"], expected)
    if all_of.get("interval", 0) >= iterations:
        expected = f"less than the iterations ({iterations}): otherwise nobody is ever replaced"
        raise InputError("search.interval", all_of["interval"], expected)


def check_grid(sampler: str, space: Space) -> None:
    size = prod(len(dimension.grid()) for dimension in space.values()) if sampler == "grid" else 0
    if size > MOST_CANDIDATES:
        expected = f"a grid of at most {MOST_CANDIDATES:,} combinations (this one has {size:,}): fewer points"
        raise InputError("space", None, expected)


def check_target(target: float | None, task: Task | None) -> None:
    """One that no candidate can reach, or that all have before they train, is meant for another goal."""
    if target is None or task is None:
        return
    low, high = sorted((task.start, task.reach))
    if not low < target < high:
        expected = (
            f"between {low:g} and {high:g}: the task begins at {task.start:g} and reaches {task.reach:g}"
        )
        raise InputError("target", target, f"a value {expected} at best (goal: {task.goal})")


# The train function that a live scenario names, looked for before anything is imported or started.


_FORM = "file.py:function or module:function, such as train.py:build"


def train_function(raw: Any, home: Path) -> str:
    """A run is made again from another folder: its file is named in full. Modules stay names."""
    file, colon, function = raw.rpartition(":") if isinstance(raw, str) else ("", "", "")
    if not colon or not file or not function.isidentifier():
        raise InputError("train", raw, _FORM)
    if not file.endswith(".py"):
        return str(raw)
    place = (home / file).resolve()
    if not place.is_file():
        raise InputError("train", raw, f"a file that is there: there is no {place}")
    names = _names(place, raw)
    if function not in names and "*" not in names:
        known = one_of(sorted(names), function) if names else "but there is none"
        raise InputError("train", raw, f"a function of {place.name}: {known}")
    node = names.get(function)
    if isinstance(node, ast.FunctionDef) and [argument.arg for argument in node.args.args[:1]] == ["trial"]:
        expected = "a function of values and workers; an objective of Optuna goes through Python"
        raise InputError("train", raw, f"{expected}: astrarium.tuning.optuna.optimize(study, {function})")
    return f"{place}:{function}"


def _names(place: Path, raw: str) -> dict[str, ast.stmt]:
    """What the file's own lines define, with these lines; `*` where it takes all of another module."""
    try:
        tree = ast.parse(place.read_text(encoding="utf-8"), str(place))
    except (SyntaxError, ValueError, OSError) as error:
        raise InputError("train", raw, f"a Python file that can be read: {error}") from None
    return {name: line for line in tree.body for name in _defined(line)}


def _defined(line: ast.stmt) -> Iterator[str]:
    if isinstance(line, ast.FunctionDef | ast.ClassDef):
        yield line.name
    elif isinstance(line, ast.Assign):
        yield from (target.id for target in line.targets if isinstance(target, ast.Name))
    elif isinstance(line, ast.ImportFrom):
        yield from (alias.asname or alias.name for alias in line.names)


SECTIONS = ("task", "train", "search", "sampler", "space", "goal", "target", "gpus", "policy", "seed",
            "costs", "emulated", "engine", "live")  # fmt: skip


class TuningScenario(WrittenScenario, frozen=True, kw_only=True):
    """*target*: where the search ends. *task*: what a simulation needs; *train*: what a live run does."""

    level: ClassVar[str] = "tuning"
    policies = tuning_policies
    search: Choice
    space: dict[str, Any]  # of ranges and choices
    goal: Goal
    target: float | None
    gpus: int
    sampler: schema.SamplerSection = schema.SamplerSection("random")
    costs: schema.CostsSection = schema.CostsSection()
    task: Task | None = None
    train: str | None = None
    emulated: Emulated | None = None
    engine: schema.EngineName = "local"
    live: schema.LiveSection = schema.LiveSection()

    @property
    def good(self) -> float | None:
        """What is good enough, whether or not the search ends there: a known task has a target too."""
        known = self.task.target if self.task is not None and isinstance(self.raw.get("task"), str) else None
        return known if self.target is None else self.target


def parse(raw: Any, path: Path = Path()) -> TuningScenario:
    """Files that the scenario names are looked for beside it."""
    if not isinstance(raw, dict) or ("models" in raw or "jobs" in raw or "apps" in raw):
        expected = "a mapping with a task or a train function"
        raise InputError("", keys_of(raw), expected)
    check_keys(raw, list(SECTIONS), "")
    raw = {
        **raw,
        **({"train": train_function(raw["train"], path.parent)} if raw.get("train") is not None else {}),
    }
    decode = Decoder().decode
    given = {name: value for name, value in raw.items() if value is not None}
    emulated = decode(Emulated | None, raw.get("emulated"), "emulated")
    space, task = _space_and_task(raw, emulated)
    goal = goal_of(raw.get("goal"), task)
    search = read_policy(raw.get("search"), searches, DEFAULT_SEARCH, "search")
    policy = read_policy(raw.get("policy"), tuning_policies, DEFAULT_POLICY)
    scenario = TuningScenario(
        search=search,
        sampler=schema.sampler_section(raw.get("sampler"), search.name),
        space=dict(space),
        goal=goal,
        target=decode(float | None, raw.get("target"), "target"),
        gpus=decode(schema.Gpus, raw.get("gpus", 8), "gpus"),
        policy=policy,
        seed=decode(Seed, raw.get("seed", DEFAULT_SEED), "seed"),
        costs=decode(schema.CostsSection, given.get("costs", {}), "costs"),
        task=task,
        train=raw.get("train"),
        emulated=emulated,
        engine=decode(schema.EngineName, raw.get("engine", "local"), "engine"),
        live=decode(schema.LiveSection, given.get("live", {}), "live"),
        raw=raw,
        source=str(path),
    )
    _check(scenario)
    return scenario


def _check(scenario: TuningScenario) -> None:
    check_search(searches.get(scenario.search.name), scenario.search.parameters)
    check_grid(scenario.sampler.kind, scenario.space)
    check_target(scenario.target, scenario.task)
    scenario.live.check(scenario.engine, scenario.emulated is not None)
    if scenario.train is None:
        for name in ("emulated", "engine", "live"):
            if name in scenario.raw:
                expected = "a train function with it: simulations have no such thing"
                raise InputError(name, scenario.raw[name], expected)


def _space_and_task(raw: dict[str, Any], emulated: Emulated | None) -> tuple[Space, Task | None]:
    if raw.get("task") is None and raw.get("train") is None:
        expected = "a task to simulate, such as cifar10-alexnet, or train: file.py:function to run it live"
        raise InputError("task", None, expected)
    space = None if raw.get("space") is None else _space(raw["space"])
    if raw.get("task") is None:
        if space is None:
            raise InputError("space", None, "what may be chosen, such as {rate: {low: 0.001, high: 1}}")
        return space, None
    task = named_or_written(raw["task"], space, raw.get("target"), emulated)
    if space is None:
        return task.space, task
    check_fits(space, task)
    return space, task


def _space(raw: Any) -> Space:
    if not isinstance(raw, dict) or not raw:
        expected = "a mapping such as {rate: {low: 0.001, high: 1, log: true}, kind: {options: [gru, lstm]}}"
        raise InputError("space", raw, expected)
    return space_of(raw)
