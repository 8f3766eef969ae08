"""Tasks that a simulated search trains: known ones by name, others as a file describes them.

The known ones are in `tasks.json`, as a file would describe them, after Table 3.3 of the dissertation of Yu:
CIFAR-10, a word language model, a DCGAN.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp
from pathlib import Path
from typing import Any, get_args

import msgspec

from astrarium.core.decode import Decoder, check_keys
from astrarium.core.errors import InputError, one_of
from astrarium.core.quantities import Time
from astrarium.core.random_streams import stream
from astrarium.tuning.live.training.workers import Emulated
from astrarium.tuning.samplers import Goal
from astrarium.tuning.scenario.schema import KnobEntry, TaskEntry
from astrarium.tuning.spaces import Choice, Range, Space, space_of


class Task(TaskEntry, frozen=True, kw_only=True):
    """A task has a knob for each hyperparameter of its *space*. *iteration* is with all knobs in the middle;
    *spread* is the standard deviation of its logarithm among candidates."""

    name: str
    target: float
    space: Space
    packing: float
    scaling: float

    def iteration_time(self, parts: Mapping[str, float], seed: int, candidate: int) -> Time:
        """Return how long an iteration takes; *parts* says how far each knob is on its way."""
        factor = exp(self.spread * float(stream(seed, self.name, "iteration", candidate).standard_normal()))
        for name, knob in self.knobs.items():
            factor *= knob.slower ** (parts[name] - 0.5)
        return max(1, round(self.iteration * factor))

    def value(self, parts: Mapping[str, float], iterations: int, seed: int, candidate: int) -> float:
        """Return the value after so many iterations in all; a copy counts by its values, whoever began it."""
        gap = sum(knob.weight * (parts[name] - knob.best) ** 2 for name, knob in self.knobs.items())
        reach = self.start + (self.reach - self.start) * exp(-gap)
        chance = stream(seed, self.name, "value", candidate, iterations).standard_normal()
        return reach + (self.start - reach) * exp(-iterations / self.patience) + self.noise * float(chance)


def described(
    name: str, raw: Any, space: Space, target: float | None, emulated: Emulated | None = None
) -> Task:
    """Return a task as a file describes it; a hyperparameter that it does not speak of does not matter."""
    entry: TaskEntry = Decoder().decode(TaskEntry, raw, "task")
    check_keys(raw.get("knobs", {}), list(space), "task.knobs")
    shared = emulated or Emulated()
    own: dict[str, Any] = {
        "target": entry.reach if target is None else target,
        "knobs": {knob: entry.knobs.get(knob, KnobEntry(weight=0.0)) for knob in space},
        "packing": shared.packing if entry.packing is None else entry.packing,
        "scaling": shared.scaling if entry.scaling is None else entry.scaling,
    }
    return Task(**{**msgspec.structs.asdict(entry), **own}, name=name, space=space)


TASKS = {
    name: described(name, entry["task"], space_of(entry["space"]), entry["target"])
    for name, entry in msgspec.json.decode(Path(__file__).with_name("tasks.json").read_bytes()).items()
}


def named_or_written(raw: Any, space: Space | None, target: Any, emulated: Emulated | None) -> Task:
    if isinstance(raw, str):
        if raw not in TASKS:
            raise InputError("task", raw, one_of(list(TASKS), raw))
        return TASKS[raw]
    if not isinstance(raw, dict):
        expected = f"{one_of(list(TASKS))}, or a mapping with iteration, start, reach, ..."
        raise InputError("task", raw, expected)
    if space is None:
        Decoder().decode(TaskEntry, raw, "task")  # what is wrong in the task itself is told first
        raise InputError("space", None, "what may be chosen: a task that is written here has no space yet")
    return described("task", raw, space, target, emulated)


def goal_of(raw: Any, task: Task | None) -> Goal:
    """Return the goal: a task has one of its own; live, the file has to say it."""
    if raw is None and task is None:
        raise InputError("goal", None, "min or max: whether small or large values are good")
    if raw is not None and raw not in get_args(Goal):
        raise InputError("goal", raw, one_of(list(get_args(Goal)), raw))
    if task is None:
        goal: Goal = raw
        return goal
    if raw not in (None, task.goal):
        expected = f"{task.goal}: values of the task go from {task.start:g} to {task.reach:g}"
        raise InputError("goal", raw, expected)
    return task.goal


def check_fits(space: Space, task: Task) -> None:
    """Refuse a space that the task does not know; it may be smaller than the task's, with the same names."""
    check_keys(dict(space), list(task.space), "space")
    for name, dimension in task.space.items():
        if name not in space:
            expected = f"a range or options: the task has it ({_shown(dimension)})"
            raise InputError(f"space.{name}", None, expected)
        if not _inside(space[name], dimension):
            expected = f"what the task knows: {_shown(dimension)}"
            raise InputError(f"space.{name}", _shown(space[name]), expected)


def _inside(mine: Range | Choice, known: Range | Choice) -> bool:
    if isinstance(known, Choice):
        return isinstance(mine, Choice) and all(option in known.options for option in mine.options)
    if isinstance(mine, Choice):
        numbers = [option for option in mine.options if isinstance(option, int | float)]
        return numbers == list(mine.options) and all(known.low <= number <= known.high for number in numbers)
    return known.low <= mine.low and mine.high <= known.high


def _shown(dimension: Range | Choice) -> str:
    if isinstance(dimension, Choice):
        return f"options {', '.join(map(str, dimension.options))}"
    return f"from {dimension.low:g} to {dimension.high:g}"
