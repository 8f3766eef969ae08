"""These checks refuse what fits field by field and still makes no sense together."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import msgspec

from astrarium.core.decode import Decoder
from astrarium.core.errors import InputError
from astrarium.tuning.scenario.tasks import Task
from astrarium.tuning.spaces import Space

MOST_CANDIDATES = 100_000


def check_search(kind: Any, settings: Mapping[str, Any]) -> None:
    """Check settings that are wrong together. They have the same names, and meaning, in all searches."""
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
    """Refuse a target that no candidate can reach, or that all have before they train: it is meant for
    another goal."""
    if target is None or task is None:
        return
    low, high = sorted((task.start, task.reach))
    if not low < target < high:
        span = f"between {low:g} and {high:g}: the task begins at {task.start:g} and reaches {task.reach:g}"
        raise InputError("target", target, f"a value {span} at best (goal: {task.goal})")
