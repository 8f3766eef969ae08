"""The apps at the table: an agent for each, who is hungry, and since when it has had nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from astrarium.cluster.agents import Agent
from astrarium.cluster.agents.outlook import Claim
from astrarium.cluster.contract import (
    AppArrived,
    Event,
    JobFinished,
    JobProgressed,
    JobStopped,
    LeaseExpired,
    MachineJoined,
    MachineLost,
)
from astrarium.cluster.demand import Appetite, most
from astrarium.cluster.fairness import Definition
from astrarium.cluster.state import AppRow, ClusterState
from astrarium.core.units import Time

OF_AN_APP = (LeaseExpired, JobFinished, JobStopped, JobProgressed)
OF_ALL = (MachineJoined, MachineLost)


@dataclass(eq=False)
class Seat:
    row: AppRow
    agent: Agent
    most: int = 0  # GPUs that its jobs of this phase can use
    starved: Time | None = None  # since when it has had no GPUs
    app: int = field(init=False)
    _appetite: Appetite | None = None

    def __post_init__(self) -> None:
        self.app = self.row.app.id

    @property
    def appetite(self) -> Appetite:
        if self._appetite is None:
            self._appetite = Appetite(self.row)
        return self._appetite

    def wants(self, offered: int) -> int:
        return self.appetite.more(min(offered, self.most - len(self.row.leases)))

    def changed(self, now: Time) -> None:
        self.agent.changed()
        self.most, self._appetite = most(self.row), None
        if self.row.leases:
            self.starved = None
        elif self.starved is None:
            self.starved = now


def touched(events: Sequence[Event], state: ClusterState) -> set[int]:
    """Apps whose GPUs or jobs have changed; with the machines, all do."""
    if any(isinstance(event, OF_ALL) for event in events):
        return set(state.apps)
    arrived = {event.app.id for event in events if type(event) is AppArrived}
    return arrived | {event.app for event in events if isinstance(event, OF_AN_APP)}


class Seats:
    def __init__(self, definition: Definition, claim: Callable[[int], Claim]) -> None:
        self._definition, self._claim = definition, claim
        self._seats: dict[int, Seat] = {}

    def __getitem__(self, app: int) -> Seat:
        return self._seats[app]

    def changed(self, now: Time, apps: Iterable[int], state: ClusterState) -> None:
        for app in sorted(apps):
            row = state.apps.get(app)
            if row is None:
                self._seats.pop(app, None)
                continue
            self._seat(row).changed(now)

    def _seat(self, row: AppRow) -> Seat:
        app = row.app
        seat = self._seats.get(app.id)
        if seat is None:
            seat = self._seats[app.id] = Seat(row, Agent(app, self._definition, self._claim(app.id)))
        return seat

    def hungry(self, now: Time, state: ClusterState) -> list[Seat]:
        """Who could use more than it has, in order of arrival."""
        found = []
        for app, row in state.apps.items():
            seat = self._seats.get(app)
            if seat is None:
                self.changed(now, (app,), state)
                seat = self._seats[app]
            if seat.most > len(row.leases):
                found.append(seat)
        return found

    def rho(self, now: Time, seat: Seat, state: ClusterState) -> float:
        return seat.agent.rho(now, seat.row, state)
