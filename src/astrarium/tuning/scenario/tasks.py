"""Tasks that a simulated search trains: known ones by name, others as a file describes them."""

from __future__ import annotations

from collections.abc import Mapping
from math import exp
from typing import Any, Literal, get_args

import msgspec

from astrarium.core.decode import Decoder, check_keys
from astrarium.core.errors import InputError, one_of
from astrarium.core.streams import stream
from astrarium.core.units import MILLISECOND, Time
from astrarium.tuning.samplers import Goal
from astrarium.tuning.scenario.schema import EmulatedSection, KnobEntry, TaskEntry
from astrarium.tuning.spaces import Choice, Range, Space, space_of

# Three tasks to tune, after Table 3.3 of the dissertation of Yu: CIFAR-10, a word language model, a DCGAN.


class Knob(msgspec.Struct, frozen=True):
    """A hyperparameter that matters.

    *best* is where on its way from low (0) to high (1) results are best, *weight* how much it matters. At its
    high end an iteration takes *slower* times as long as at its low end.
    """

    space: dict[str, Any]
    best: float
    weight: float = 1.0
    slower: float = 1.0


class Task(msgspec.Struct, frozen=True):
    """*iteration* on one GPU with all knobs in the middle; *spread* is the standard deviation of its
    logarithm among candidates. *start*, *reach*: values before training, and what the best reaches."""

    name: str
    goal: Literal["min", "max"]
    target: float
    knobs: dict[str, Knob]
    iteration: Time
    spread: float
    packing: float
    scaling: float
    start: float
    reach: float
    patience: float
    noise: float

    @property
    def space(self) -> dict[str, dict[str, Any]]:
        return {name: knob.space for name, knob in self.knobs.items()}

    def iteration_time(self, parts: Mapping[str, float], seed: int, candidate: int) -> Time:
        """*parts*: how far each knob is on its way."""
        factor = exp(self.spread * float(stream(seed, self.name, "iteration", candidate).standard_normal()))
        for name, knob in self.knobs.items():
            factor *= knob.slower ** (parts[name] - 0.5)
        return max(1, round(self.iteration * factor))

    def value(self, parts: Mapping[str, float], iterations: int, seed: int, candidate: int) -> float:
        """After so many iterations in all; a copy is worth what its values are, whoever began it."""
        gap = sum(knob.weight * (parts[name] - knob.best) ** 2 for name, knob in self.knobs.items())
        reach = self.start + (self.reach - self.start) * exp(-gap)
        chance = stream(seed, self.name, "value", candidate, iterations).standard_normal()
        return reach + (self.start - reach) * exp(-iterations / self.patience) + self.noise * float(chance)


def _range(low: float, high: float, log: bool = False, whole: bool = False) -> dict[str, Any]:
    return {"low": low, "high": high, "log": log, "whole": whole}


_CIFAR = Task(
    name="cifar10-alexnet",
    goal="max",
    target=90.0,
    knobs={
        "learning_rate": Knob(_range(1e-4, 1.0, log=True), 0.6, 2.0),
        "momentum": Knob(_range(0.5, 0.99), 0.8, 0.15),
        "weight_decay": Knob(_range(1e-6, 1e-2, log=True), 0.6, 0.2),
        "batch": Knob({"options": [32, 64, 128, 256]}, 0.4, 0.1, slower=0.6),
        "layers": Knob(_range(2, 6, whole=True), 0.7, 0.2, slower=1.8),
        "channels": Knob(_range(32, 256, log=True, whole=True), 0.7, 0.2, slower=1.8),
        "kernel": Knob({"options": [3, 5, 7]}, 0.3, 0.05, slower=1.2),
    },
    iteration=12_500 * MILLISECOND,
    spread=0.15,
    packing=1.34,
    scaling=1.35,
    start=10.0,
    reach=95.5,
    patience=6.0,
    noise=0.3,
)

_WLM = Task(
    name="wlm-rnn",
    goal="min",
    target=140.0,
    knobs={
        "learning_rate": Knob(_range(0.1, 40.0, log=True), 0.7, 0.8),
        "dropout": Knob(_range(0.0, 0.8), 0.4, 0.15),
        "clip": Knob(_range(0.05, 1.0, log=True), 0.5, 0.06),
        "batch": Knob({"options": [10, 20, 40, 80]}, 0.3, 0.06, slower=0.5),
        "steps": Knob(_range(10, 70, whole=True), 0.5, 0.06),
        "weight_decay": Knob(_range(1e-8, 1e-4, log=True), 0.4, 0.06),
        "model": Knob({"options": ["rnn", "gru", "lstm"]}, 1.0, 0.1, slower=1.6),
        "embedding": Knob(_range(100, 800, log=True, whole=True), 0.7, 0.08, slower=1.4),
        "hidden": Knob(_range(100, 800, log=True, whole=True), 0.7, 0.08, slower=1.8),
        "layers": Knob(_range(1, 3, whole=True), 0.5, 0.06, slower=1.6),
    },
    iteration=20_000 * MILLISECOND,
    spread=0.15,
    packing=1.4,
    scaling=1.12,
    start=700.0,
    reach=90.0,
    patience=5.0,
    noise=1.5,
)

_DCGAN = Task(
    name="dcgan-cnn",
    goal="max",
    target=5.2,
    knobs={
        "learning_rate": Knob(_range(1e-5, 1e-2, log=True), 0.5, 2.5),
        "momentum": Knob(_range(0.1, 0.95), 0.5, 0.6),
    },
    iteration=8_000 * MILLISECOND,
    spread=0.1,
    packing=1.28,
    scaling=1.35,
    start=1.0,
    reach=5.5,
    patience=8.0,
    noise=0.03,
)

TASKS = {task.name: task for task in (_CIFAR, _WLM, _DCGAN)}


def task(name: str) -> Task:
    if name not in TASKS:
        raise InputError("task", name, one_of(list(TASKS), name))
    return TASKS[name]


def named_or_written(raw: Any, space: Space | None, target: Any, emulated: EmulatedSection | None) -> Task:
    if isinstance(raw, str):
        if raw not in TASKS:
            raise InputError("task", raw, one_of(list(TASKS), raw))
        return TASKS[raw]
    if not isinstance(raw, dict):
        raise InputError(
            "task", raw, f"{one_of(list(TASKS))}, or a mapping with iteration, start, reach, ..."
        )
    entry: TaskEntry = Decoder().decode(TaskEntry, raw, "task")
    if space is None:
        raise InputError("space", None, "what may be chosen: a task that is written here has no space yet")
    check_keys(raw.get("knobs", {}), list(space), "task.knobs")
    knobs = {name: _knob(dimension, entry.knobs.get(name)) for name, dimension in space.items()}
    shared = emulated or EmulatedSection()
    return Task(
        name="task",
        goal=entry.goal,
        target=entry.reach if target is None else target,
        knobs=knobs,
        iteration=entry.iteration,
        spread=entry.spread,
        packing=shared.packing if entry.packing is None else entry.packing,
        scaling=shared.scaling if entry.scaling is None else entry.scaling,
        start=entry.start,
        reach=entry.reach,
        patience=entry.patience,
        noise=entry.noise,
    )


def _knob(dimension: Range | Choice, entry: KnobEntry | None) -> Knob:
    """What the task does not speak of does not matter to it."""
    found = entry or KnobEntry(weight=0.0)
    return Knob(_plain(dimension), found.best, found.weight, found.slower)


def _plain(dimension: Range | Choice) -> dict[str, Any]:
    names = dimension.__struct_fields__
    return {name: getattr(dimension, name) for name in names}


def goal_of(raw: Any, task: Task | None) -> Goal:
    """A task has a goal of its own; live, one has to say it."""
    if raw is None and task is None:
        raise InputError("goal", None, "min or max: whether small or large values are good")
    if raw is not None and raw not in get_args(Goal):
        raise InputError("goal", raw, one_of(list(get_args(Goal)), raw))
    if task is None:
        goal: Goal = raw
        return goal
    if raw not in (None, task.goal):
        told = f"{task.goal}: values of the task go from {task.start:g} to {task.reach:g}"
        raise InputError("goal", raw, told)
    return task.goal


def check_fits(space: Space, task: Task) -> None:
    """A space of one's own may be smaller than the task's, with the same names."""
    known = space_of(task.space)
    check_keys(dict(space), list(known), "space")
    for name, dimension in known.items():
        if name not in space:
            told = f"a range or options: the task has it ({_shown(dimension)})"
            raise InputError(f"space.{name}", None, told)
        if not _inside(space[name], dimension):
            told = f"what the task knows: {_shown(dimension)}"
            raise InputError(f"space.{name}", _shown(space[name]), told)


def _inside(mine: Range | Choice, known: Range | Choice) -> bool:
    if isinstance(known, Choice):
        return isinstance(mine, Choice) and all(option in known.options for option in mine.options)
    if isinstance(mine, Choice):
        return all(_between(option, known) for option in mine.options)
    return known.low <= mine.low and mine.high <= known.high


def _between(value: Any, known: Range) -> bool:
    return isinstance(value, int | float) and known.low <= value <= known.high


def _shown(dimension: Range | Choice) -> str:
    if isinstance(dimension, Choice):
        return f"options {', '.join(map(str, dimension.options))}"
    return f"from {dimension.low:g} to {dimension.high:g}"
