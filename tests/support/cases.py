"""A policy of the serving level is run in a small case here."""

from __future__ import annotations

from astrarium.run.simulate import World
from astrarium.serving.contract import Action, Event
from astrarium.serving.policies import ServingPolicy
from astrarium.serving.state import ServingState
from astrarium.serving.world import ServingWorld
from astrarium.testing.played import play
from astrarium.testing.serving.cases import Case, Run


def run_case(
    case: Case,
    policy: ServingPolicy,
    world: World[Action, Event, ServingState] | None = None,
    state: ServingState | None = None,
) -> Run:
    """Simulate the case with the books validated after every step."""
    return play(
        case, policy, state or ServingState(case.setup), world or ServingWorld(case.setup, case.exact)
    )
