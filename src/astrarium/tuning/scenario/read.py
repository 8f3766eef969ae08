"""Scenario files whose subject is a search for hyperparameters: read, overridden, checked in every part.

task: cifar10-alexnet
search: {name: hyperband, iterations: 27}
gpus: 8
policy: {name: dynamic-fluid}

With `train: file.py:function` in place of a task the search runs live. A file may have both.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from astrarium.core.choice import DEFAULT_SEED, Choice, Seed, WrittenScenario, read_policy
from astrarium.core.decode import Decoder, check_keys, keys_of
from astrarium.core.errors import InputError
from astrarium.tuning.live.training.workers import Emulated
from astrarium.tuning.policies import DEFAULT_POLICY, DEFAULT_SEARCH, searches, tuning_policies
from astrarium.tuning.samplers import Goal
from astrarium.tuning.scenario import schema
from astrarium.tuning.scenario.checks import check_grid, check_search, check_target
from astrarium.tuning.scenario.sampler import SamplerSection, sampler_section
from astrarium.tuning.scenario.tasks import Task, check_fits, goal_of, named_or_written
from astrarium.tuning.scenario.train_function import train_function
from astrarium.tuning.spaces import Space, space_of

SECTIONS = ("task", "train", "search", "sampler", "space", "goal", "target", "metric", "gpus", "policy",
            "seed", "costs", "emulated", "engine", "live")  # fmt: skip


class TuningScenario(WrittenScenario, frozen=True, kw_only=True):
    """*target*: where the search ends. *task*: what a simulation needs; *train*: what a live run does."""

    level: ClassVar[str] = "tuning"
    policies = tuning_policies
    search: Choice
    space: dict[str, Any]  # of ranges and choices
    goal: Goal
    target: float | None
    gpus: int
    metric: str = ""
    sampler: SamplerSection = SamplerSection("random")
    costs: schema.CostsSection = schema.CostsSection()
    task: Task | None = None
    train: str | None = None
    emulated: Emulated | None = None
    engine: schema.EngineName = "local"
    live: schema.LiveSection = schema.LiveSection()

    @property
    def good(self) -> float | None:
        """Return what is good enough, whether or not the search ends there: a known task has a target too."""
        usual = self.task.target if self.task is not None and isinstance(self.raw.get("task"), str) else None
        return usual if self.target is None else self.target


def parse(raw: Any, path: Path = Path()) -> TuningScenario:
    """Read a scenario. Files that it names are looked for beside it."""
    if not isinstance(raw, dict) or ("models" in raw or "jobs" in raw or "apps" in raw):
        expected = "a mapping with a task or a train function"
        raise InputError("", keys_of(raw), expected)
    check_keys(raw, list(SECTIONS), "")
    raw = {
        **raw,
        **({"train": train_function(raw["train"], path.parent)} if raw.get("train") is not None else {}),
    }
    decode = Decoder().decode
    present = {name: value for name, value in raw.items() if value is not None}
    emulated = decode(Emulated | None, raw.get("emulated"), "emulated")
    space, task = _space_and_task(raw, emulated)
    goal = goal_of(raw.get("goal"), task)
    search = read_policy(raw.get("search"), searches, DEFAULT_SEARCH, "search")
    policy = read_policy(raw.get("policy"), tuning_policies, DEFAULT_POLICY)
    scenario = TuningScenario(
        search=search,
        sampler=sampler_section(raw.get("sampler"), search.name),
        space=dict(space),
        goal=goal,
        target=decode(float | None, raw.get("target"), "target"),
        metric=decode(str, raw.get("metric", ""), "metric"),
        gpus=decode(schema.Gpus, raw.get("gpus", 8), "gpus"),
        policy=policy,
        seed=decode(Seed, raw.get("seed", DEFAULT_SEED), "seed"),
        costs=decode(schema.CostsSection, present.get("costs", {}), "costs"),
        task=task,
        train=raw.get("train"),
        emulated=emulated,
        engine=decode(schema.EngineName, raw.get("engine", "local"), "engine"),
        live=decode(schema.LiveSection, present.get("live", {}), "live"),
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
        for name in ("emulated", "engine", "live", "metric"):
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
