"""A cluster that teams share, decided step by step."""

from __future__ import annotations

from typing import Any

import msgspec

from astrarium.cluster.contract import App, single
from astrarium.cluster.state import ClusterState
from astrarium.core.quantities import SECOND
from astrarium.core.trace import Step

MINUTE = 60 * SECOND


def app(number: int, team: str, minutes: float, gpus: int = 1, jobs: int = 1, **limits: Any) -> App:
    """Return an app of jobs that take so many minutes each."""
    whole = single(number, f"{team}-{number}", round(minutes * MINUTE), gpus, team=team)
    ((job,),) = whole.phases
    phase = tuple(msgspec.structs.replace(job, id=place) for place in range(jobs))
    return msgspec.structs.replace(whole, phases=(phase,), **limits)


def follow(state: ClusterState, step: Step) -> None:
    for event in step.events:
        state.apply(step.now, event)
    for action in step.actions:
        state.commit(step.now, action)
