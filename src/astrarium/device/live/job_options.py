"""What a user says of a job is checked before any other job is affected."""

from __future__ import annotations

import math
from dataclasses import dataclass

from astrarium.core.errors import InputError
from astrarium.device.live.backend import Needs

UNKNOWN = 1 << 40  # iterations of a job that does not say how many


@dataclass(frozen=True)
class JobOptions:
    iterations: int
    priority: int
    demand: float


def checked_options(
    name: str, needs: Needs | None, iterations: int | None, priority: int, demand: float
) -> JobOptions:
    source = f"job {name}"
    if iterations is not None and not _whole(iterations, 1):
        raise InputError("iterations", iterations, "at least 1, or None if it is not known", source)
    if not _whole(priority):
        raise InputError("priority", priority, "a whole number; the higher, the more important", source)
    if isinstance(demand, bool) or not isinstance(demand, int | float) or not 0 < demand <= 1:
        raise InputError("demand", demand, "a share of the GPU: above 0, at most 1", source)
    if needs is not None:
        _check_needs(needs, source)
    return JobOptions(UNKNOWN if iterations is None else iterations, priority, float(demand))


def _check_needs(needs: Needs, source: str) -> None:
    if not isinstance(needs, tuple) or len(needs) != len(Needs._fields):
        raise InputError("needs", needs, "Needs(persistent, ephemeral, iteration), or None", source)
    for field, value in zip(Needs._fields, needs, strict=True):
        unit = "nanoseconds" if field == "iteration" else "bytes"
        least = 1 if field == "iteration" else 0
        if not _whole(value, least):
            raise InputError(f"needs.{field}", value, f"a whole number of {unit}, at least {least}", source)


def _whole(value: object, least: float = -math.inf) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
