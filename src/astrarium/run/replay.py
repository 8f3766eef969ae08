"""Recorded time: feed yesterday's events through a fresh policy and compare what it decides."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from astrarium.core.engine import Engine
from astrarium.core.trace import Step


class Divergence(NamedTuple):
    """The first step at which the fresh policy decided otherwise."""

    recorded: Step
    decided: tuple[Any, ...]


def replay(engine: Engine[Any, Any, Any], steps: Iterable[Step]) -> Divergence | None:
    """None if every decision is the recorded one."""
    for step in steps:
        decided = tuple(engine.step(step.now, step.events))
        if decided != step.actions:
            return Divergence(step, decided)
    return None
