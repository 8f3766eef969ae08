"""Participants are the apps in the rounds of Themis, each with its agent; some of them want more GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from astrarium.cluster import contract
from astrarium.cluster.agents.agent import AppAgent
from astrarium.cluster.agents.self_report import SelfReport
from astrarium.cluster.demand import GpuDemand, most_usable
from astrarium.cluster.fairness import Definition
from astrarium.cluster.state import AppRow, ClusterState
from astrarium.core.quantities import Time

OF_AN_APP = (contract.LeaseExpired, contract.JobFinished, contract.JobStopped, contract.JobProgressed)
OF_ALL = (contract.MachineJoined, contract.MachineLost, contract.GpuFailed, contract.GpuRepaired)


@dataclass(eq=False)
class Participant:
    """A participant is an app that may bid in rounds. Its agent speaks for it; when it has *starved* for too
    long, a round serves it first."""

    row: AppRow
    agent: AppAgent
    most: int = 0  # GPUs that its jobs of this phase can use
    starved: Time | None = None  # since when it has had no GPUs
    app: int = field(init=False)
    _demand: GpuDemand | None = None

    def __post_init__(self) -> None:
        self.app = self.row.app.id

    @property
    def demand(self) -> GpuDemand:
        if self._demand is None:
            self._demand = GpuDemand(self.row)
        return self._demand

    def wants(self, offered: int) -> int:
        """Return how many of the offered GPUs the app would put to use."""
        return self.demand.more(min(offered, self.most - len(self.row.leases)))

    def changed(self, now: Time) -> None:
        """Note that the app has other GPUs or jobs than before."""
        self.agent.changed()
        self.most = most_usable(self.row)
        self._demand = None
        if self.row.leases:
            self.starved = None
        elif self.starved is None:
            self.starved = now


def touched(events: Sequence[contract.Event], state: ClusterState) -> set[int]:
    """Return the apps whose GPUs or jobs have changed; with the machines, all do."""
    if any(isinstance(event, OF_ALL) for event in events):
        return set(state.apps)
    arrived = {event.app.id for event in events if type(event) is contract.AppArrived}
    return arrived | {event.app for event in events if isinstance(event, OF_AN_APP)}


class Participants:
    """The participants of a run are noted as apps come, change and go. What an app reports of itself is asked
    of *report* when it comes, and never again."""

    def __init__(self, definition: Definition, report: Callable[[int], SelfReport]) -> None:
        self._definition = definition
        self._report = report
        self._participants: dict[int, Participant] = {}

    def changed(self, now: Time, apps: Iterable[int], state: ClusterState) -> None:
        for app in sorted(apps):
            row = state.apps.get(app)
            if row is None:
                self._participants.pop(app, None)
                continue
            if app not in self._participants:
                agent = AppAgent(row.app, self._definition, self._report(app))
                self._participants[app] = Participant(row, agent)
            self._participants[app].changed(now)

    def wanting(self, now: Time, state: ClusterState) -> list[Participant]:
        """Return the apps that could use more than they have, in order of arrival."""
        self.changed(now, state.apps.keys() - self._participants.keys(), state)
        known = ((self._participants[app], row) for app, row in state.apps.items())
        return [participant for participant, row in known if participant.most > len(row.leases)]
