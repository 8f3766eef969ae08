"""A policy that takes over from another, in the middle of things."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from astrarium.cluster.actions import Grant, Revoke
from astrarium.cluster.events import AppArrived, Event, MachineJoined
from astrarium.cluster.registry import Allocator
from astrarium.cluster.state import ClusterState
from astrarium.core.policy import SetTimer
from astrarium.core.units import Time


class Introduced:
    """Before its first decision it hears of all that is there, as if it had just come. The books, which know
    when it really came, do not hear it again."""

    def __init__(self, allocator: Allocator) -> None:
        self.allocator, self._knows = allocator, False

    def allocate(
        self, now: Time, events: Sequence[Event], state: ClusterState
    ) -> Iterator[Grant | Revoke | SetTimer]:
        if not self._knows:
            self._knows, fresh = True, {event for event in events if isinstance(event, MachineJoined)}
            arrived = {event.app.id for event in events if isinstance(event, AppArrived)}
            machines = (MachineJoined(machine) for machine in state.floor.machines.values())
            apps = (AppArrived(row.app) for row in state.apps.values() if row.app.id not in arrived)
            events = (*(each for each in machines if each not in fresh), *apps, *events)
        yield from self.allocator.allocate(now, events, state)
