"""A live cluster without a store, in virtual time, on a backend that plays its machines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from astrarium.cluster.contract import App, AppArrived
from astrarium.cluster.live.backend import JobCommand, MachineStatus
from astrarium.cluster.live.cluster import LiveCluster, Options
from astrarium.cluster.live.memory import Memory
from astrarium.cluster.live.policy import NonPreemptibleAllocator, TakeoverAllocator, unpickled_policy
from astrarium.cluster.live.slowdowns import FixedSlowdowns, RelativeSlowdowns
from astrarium.cluster.policies import Arbiter, cluster_policies
from astrarium.cluster.state import ClusterState, Outcome
from astrarium.core.quantities import SECOND, Duration
from tests.support.cluster.live_fakes import Clock, FakeBackend, Notebook

TASK = JobCommand(("train",))


def policy(name: str, **parameters: Any) -> Any:
    factory: Any = cluster_policies.get(name)
    return factory(factory.Parameters(**parameters))


def leased(seconds: int = 10) -> Any:
    return policy("tiresias", lease=Duration(seconds * SECOND))


class Play:
    """A cluster of two machines of two GPUs, and apps that come."""

    def __init__(
        self,
        allocator: Any,
        apps: list[App],
        leaving: float = 0.0,
        tasks: dict[int, JobCommand] | None = None,
        options: Options | None = None,
        breaks: bool = False,
        learns: bool = False,
    ) -> None:
        self.clock = Clock()
        self.notes = Notebook()
        self.tasks = tasks or {app.id: TASK for app in apps}
        self._lasts = {app for app, task in self.tasks.items() if task.on_stop == "never"}.__contains__
        work = {app.id: app.phases[0][0].work for app in apps}
        machines = {name: MachineStatus(2) for name in ("left", "right")}
        self.backend = FakeBackend(self.clock, machines, work, round(leaving * SECOND))
        self.backend.breaks = {app.id for app in apps if breaks}
        self.options = options
        self.arbiter = Arbiter(NonPreemptibleAllocator(allocator, self._lasts))
        self.notes.allocator = allocator
        self._slowdowns = RelativeSlowdowns if learns else FixedSlowdowns
        self.live = self._made(ClusterState(self._slowdowns()), Memory())
        self.live.step(0, [AppArrived(app) for app in apps])

    def _made(self, state: ClusterState, memory: Memory) -> LiveCluster:
        self.notes.state = state
        return LiveCluster(state, self.arbiter, self.backend, self.notes, self.tasks, self.options, memory)

    def die_and_come_back(self, other: Any = None) -> None:
        """Only what was written down is left; or another policy takes over."""
        state = ClusterState(self._slowdowns())
        for step in self.notes.steps:
            for event in step.events:
                state.apply(step.now, event)
            for action in step.actions:
                state.commit(step.now, action)
        state.unsettled.clear()
        kept = TakeoverAllocator(other) if other else unpickled_policy(self.notes.policy, state)
        self.notes.allocator = other or kept
        self.arbiter = Arbiter(NonPreemptibleAllocator(kept, self._lasts))
        self.live = self._made(state, msgspec.msgpack.decode(self.notes.memory, type=Memory))

    def go(self, seconds: float, tick: float = 0.5, until: Callable[[], bool] | None = None) -> None:
        for _ in range(round(seconds / tick)):
            self.clock.pass_seconds(tick)
            self.live.step(self.clock.now)
            if until is not None and until():
                return

    def outcomes(self) -> list[Outcome]:
        return [row.outcome for row in self.live.state.ledger.rows.values()]

    def ended(self, app: int) -> float:
        return self.live.state.ledger.rows[app].ended / SECOND

    @property
    def runs(self) -> list[tuple[int, int, int, str]]:
        return [(*key, seen.ended) for key, seen in self.notes.ended]
