"""Tasks that a simulated search trains: known ones by name, others as a file describes them."""

from __future__ import annotations

from typing import Any, get_args

from astrarium.core.decode import Decoder, check_keys
from astrarium.core.errors import InputError, one_of
from astrarium.tuning.samplers import Goal
from astrarium.tuning.scenario.schema import EmulatedSection, KnobEntry, TaskEntry
from astrarium.tuning.spaces import Choice, Range, Space, space_of
from astrarium.tuning.tasks import TASKS, Knob, Task


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
