"""What fits field by field and still makes no sense together."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import msgspec

from astrarium.core.errors import InputError
from astrarium.tuning.spaces import Space
from astrarium.workloads.tuning_tasks import Task

MOST_CANDIDATES = 100_000


def check_search(kind: Any, settings: Mapping[str, Any]) -> None:
    """Searches share the names of their settings: what they mean together is the same for all."""
    all_of = msgspec.structs.asdict(kind.Parameters(**settings))
    for name in ("candidates", "population"):
        if all_of.get(name, 0) > MOST_CANDIDATES:
            raise InputError(f"search.{name}", all_of[name], f"at most {MOST_CANDIDATES:,}")
    iterations, eta = all_of.get("iterations", 1), all_of.get("eta", 1)
    if iterations < eta:
        told = f"at least eta ({eta}): with fewer there is one rung only, and nobody is stopped"
        raise InputError("search.iterations", iterations, told)
    if all_of.get("smallest", 1) * eta > iterations:
        told = f"at most {iterations // eta}, one in eta ({eta}) of the iterations ({iterations})"
        raise InputError("search.smallest", all_of["smallest"], told)
    if all_of.get("interval", 0) >= iterations:
        told = f"less than the iterations ({iterations}): otherwise nobody is ever replaced"
        raise InputError("search.interval", all_of["interval"], told)


def check_grid(sampler: str, space: Space) -> None:
    size = prod(len(dimension.grid()) for dimension in space.values()) if sampler == "grid" else 0
    if size > MOST_CANDIDATES:
        told = f"a grid of at most {MOST_CANDIDATES:,} combinations (this one has {size:,}): fewer points"
        raise InputError("space", None, told)


def check_target(target: float | None, task: Task | None) -> None:
    """One that no candidate can reach, or that all have before they train, is meant for another goal."""
    if target is None or task is None:
        return
    low, high = sorted((task.start, task.reach))
    if not low < target < high:
        told = f"between {low:g} and {high:g}: the task begins at {task.start:g} and reaches {task.reach:g}"
        raise InputError("target", target, f"a value {told} at best (goal: {task.goal})")
