"""The path of calls limits a server as its GPUs do: threads read each call, decide on it and answer it.

What a call takes of the busiest of these threads is a model's `path_time`, which `astrarium profile --write`
measures where it is served.
"""

from __future__ import annotations

from collections.abc import Mapping

from astrarium.core.quantities import SECOND
from astrarium.serving.scenario import Scenario


def path_load(scenario: Scenario, rates: Mapping[str, float]) -> float | None:
    """Return how busy the busiest thread of the path is at these rates; above 1 it cannot keep up.

    None: a call of some model that has a rate was not measured.
    """
    if unmeasured(scenario, rates):
        return None
    return sum(rate * (scenario.models[name].path_time or 0) for name, rate in rates.items()) / SECOND


def unmeasured(scenario: Scenario, rates: Mapping[str, float]) -> list[str]:
    """Return the models that have a rate and whose calls were not measured."""
    return [name for name, rate in rates.items() if rate and scenario.models[name].path_time is None]


def not_counted(names: list[str]) -> str:
    """Say that the path is not in a promise, since these models' calls were not measured, and what does."""
    return (
        f"the path of calls is not counted: `astrarium profile FILE --model {names[0]} --write` measures it"
    )
