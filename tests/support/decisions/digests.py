"""Digests of decisions, and a case: a scenario with how all policies of a level are run on it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from typing import Any, NamedTuple

from astrarium.cluster.contract import Grant, Revoke, Run, Stop
from astrarium.core.policy import SetTimer
from astrarium.core.trace import Step
from astrarium.device.contract import Admit, Refuse, RunIteration
from astrarium.serving.contract import Dispatch, Drop, Preempt
from astrarium.tuning.contract import Pause, Put

Rows = list[list[Any]]  # decisions: an instant, what, and its values
Runs = Iterator[tuple[str, str, Rows]]  # of a policy, on an engine
Parameters = dict[str, Any]


class Case(NamedTuple):
    """A scenario, made when it is needed, and how all policies of a level are run on it."""

    level: str
    scenario: str
    runs: Callable[[Any], Runs]
    make: Callable[[], Any]
    thorough: bool = False

    @property
    def name(self) -> str:
        return f"{self.level}/{self.scenario}"

    def digests(self) -> dict[str, str]:
        return {
            f"{self.level}/{policy}/{engine}/{self.scenario}": digest(rows)
            for policy, engine, rows in self.runs(self.make())
        }

    def has(self, key: str) -> bool:
        """Whether a recorded digest is one of its own."""
        return key.startswith(f"{self.level}/") and key.endswith(f"/{self.scenario}")


def written(cases: Iterable[Case]) -> str:
    """Return the digests of all decisions as the text of a recording."""
    decisions: dict[str, str] = {}
    for case in cases:
        decisions |= case.digests()
    return json.dumps(decisions, indent=1, sort_keys=True)


def digest(rows: Rows) -> str:
    """How many decisions there are, and what they are."""
    assert rows, "a run without a decision tells nothing"
    text = json.dumps(rows, separators=(",", ":"))
    return f"{len(rows)} {sha256(text.encode()).hexdigest()}"


def rounded(value: float) -> float:
    """The last bits of logarithms and sums differ between processors and versions of Python."""
    return float(f"{value:.9g}")


def decided(steps: Iterable[Step]) -> Rows:
    """Timers are told apart, whatever they are called."""
    timers: dict[str, int] = {}
    return [[step.now, *values(action, timers)] for step in steps for action in step.actions]


def values(action: Any, timers: dict[str, int]) -> list[Any]:
    match action:
        case SetTimer():
            return ["timer", timers.setdefault(action.name, len(timers)), action.at]
        case Dispatch():
            return ["dispatch", action.gpu, action.requests, action.start]
        case Drop():
            return ["drop", action.request, action.reason]
        case Preempt():
            return ["preempt", action.gpu]
        case Admit():
            return ["admit", action.job, action.lane]
        case Refuse():
            return ["refuse", action.job]
        case RunIteration():
            return ["iterate", action.job]
        case Put():
            return ["put", action.trial, action.place.gpus, action.place.parts]
        case Pause():
            return ["pause", action.trial]
        case Grant():
            return ["grant", action.app, action.gpus, action.until]
        case Revoke():
            return ["revoke", action.app, action.gpus]
        case Run():
            return ["run", action.app, action.job, action.gpus]
        case Stop():
            return ["stop", action.app, action.job]
    raise TypeError(f"an action without a tag: {action}")


def variants(
    names: Iterable[str], others: Iterable[tuple[str, Parameters]]
) -> dict[str, tuple[str, Parameters]]:
    """By label: each policy as it is, and *others* with parameters."""
    chosen: dict[str, tuple[str, Parameters]] = {name: (name, {}) for name in names}
    for name, parameters in others:
        label = ",".join(f"{key}={value}" for key, value in parameters.items())
        chosen[f"{name}:{label}"] = (name, parameters)
    return chosen
