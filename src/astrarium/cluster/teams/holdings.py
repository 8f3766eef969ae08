"""Who has which GPUs: apps of one team and one priority are a queue, and each queue has GPUs of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from astrarium.cluster.contract import App
from astrarium.cluster.state import AppRow, ClusterState
from astrarium.cluster.teams import Rules
from astrarium.core.quantities import Time


class QueueKey(NamedTuple):
    """Whose queue it is: that of all apps of a team with the same priority."""

    team: str
    priority: int


class Tenure(NamedTuple):
    """Who holds a GPU: an app since an instant, and its team since another."""

    app: int
    since: Time
    team: str
    team_since: Time


@dataclass
class Holdings:
    queues: dict[QueueKey, set[int]] = field(default_factory=dict)  # their GPUs
    keys: dict[int, QueueKey] = field(default_factory=dict)  # the queue of each app
    tenures: dict[int, Tenure] = field(default_factory=dict)  # by GPU that is leased

    def enter(self, app: App, rules: Rules) -> None:
        key = self.keys[app.id] = QueueKey(rules.team_of(app), app.priority)
        self.queues.setdefault(key, set())

    def of(self, team: str) -> list[QueueKey]:
        """Return the queues of a team, the highest priority first."""
        return sorted((key for key in self.queues if key.team == team), key=lambda key: -key.priority)

    def count(self, team: str) -> int:
        return sum(len(self.queues[key]) for key in self.of(team))

    def rows(self, key: QueueKey, state: ClusterState) -> dict[int, AppRow]:
        return {app: row for app, row in state.apps.items() if self.keys[app] == key}

    def newest_first(self, keys: Iterable[QueueKey], state: ClusterState) -> list[AppRow]:
        """Return who holds GPUs in these queues: the lowest priority first, and who came last."""
        ours = set(keys)
        rows = [row for app, row in state.apps.items() if self.keys[app] in ours and row.leases]
        return sorted(rows, key=lambda row: (row.app.priority, -row.arrived, -row.app.id))

    def meet(self, state: ClusterState) -> None:
        """Let queues have what their apps hold, and no GPU that is gone."""
        there = state.free | state.holder.keys()
        for gpus in self.queues.values():
            gpus &= there
        for gpu, app in state.holder.items():
            if gpu not in self.queues[self.keys[app]]:  # a policy before this one has leased it
                self.move((gpu,), self.keys[app])

    def move(self, gpus: Iterable[int], to: QueueKey | None) -> None:
        """Give GPUs to a queue, or to none."""
        for owned in self.queues.values():
            owned.difference_update(gpus)
        if to is not None:
            self.queues[to].update(gpus)

    def remember(self, now: Time, state: ClusterState) -> None:
        """Note who holds what from now on."""
        self.tenures = {gpu: self._tenure(now, gpu, app) for gpu, app in state.holder.items()}

    def _tenure(self, now: Time, gpu: int, app: int) -> Tenure:
        before = self.tenures.get(gpu)
        team = self.keys[app].team
        since = before.since if before is not None and before.app == app else now
        team_since = before.team_since if before is not None and before.team == team else now
        return Tenure(app, since, team, team_since)
