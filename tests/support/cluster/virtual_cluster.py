"""A live cluster in virtual time: its store is a file, its backend and its clock are fakes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from astrarium.cluster.contract import App, single
from astrarium.cluster.live.arbiter import ArbiterProcess, ArbiterSetup, ChosenPolicy, PlannedApp
from astrarium.cluster.live.backend import JobCommand, MachineStatus
from astrarium.cluster.live.store import FILE, Store, open_database, rows
from astrarium.cluster.policies import cluster_policies
from astrarium.core.choice import Choice, chosen
from astrarium.core.errors import InputError
from astrarium.core.quantities import SECOND
from tests.support.cluster.live_fakes import Clock, FakeBackend

START = 1_700_000_000 * SECOND  # of the wall clock
TASK = JobCommand(("train",))


def read(body: dict[str, Any], largest: int, owner: str) -> list[tuple[App, JobCommand]]:
    if body["gpus"] > largest:
        raise InputError("gpus", body["gpus"], f"at most {largest}")
    return [(single(0, body["name"], 20 * SECOND, body["gpus"], team=body.get("team", "")), TASK)]


class VirtualCluster:
    """A cluster whose arbiter can end as a killed process does: without a word."""

    def __init__(
        self, home: Path, policy: str = "tiresias", planned: tuple[PlannedApp, ...] = (), **more: Any
    ) -> None:
        self.home = home
        self.clock = Clock()
        self.set_back = 0
        lengths = dict.fromkeys(range(20), 40 * SECOND)
        machines = {name: MachineStatus(2) for name in ("left", "right")}
        self.backend = FakeBackend(self.clock, machines, lengths, leaving=SECOND)
        self.planned = planned
        self.more = more
        self.arbiter = self._open(policy)

    def wall(self) -> int:
        return START + self.clock.now - self.set_back

    def _open(self, name: str) -> ArbiterProcess:
        parameters = {"fifo": {}, "max-min": {"round": "5s"}}.get(name, {"lease": "5s"})
        policy = ChosenPolicy(f"{name}{parameters}", chosen(cluster_policies, Choice(name, parameters)))
        setup = ArbiterSetup(policy, read, self.wall, self.clock, planned=self.planned, **self.more)
        return ArbiterProcess(self.home, setup, self.backend)

    def die_and_come_back(self, policy: str = "tiresias") -> None:
        os.close(self.arbiter._lock)
        self.arbiter = self._open(policy)

    def submit(self, name: str, gpus: int = 1, kind: str = "app", team: str = "", **more: Any) -> int:
        body = {"name": name, "gpus": gpus, "app": name, "team": team, **more}
        return Store(self.home).inbox.send(kind, body, self.clock.now)

    def go(self, seconds: float, every: float = 0.5) -> None:
        for _ in range(round(seconds / every)):
            self.clock.pass_seconds(every)
            self.arbiter.turn()

    def outcomes(self) -> dict[str, str]:
        return {row["name"]: row["outcome"] for row in self.rows("SELECT * FROM apps")}

    def rows(self, query: str) -> list[dict[str, Any]]:
        return rows(open_database(self.home / FILE, read_only=True), query)

    def count(self, table: str, where: str = "1") -> int:
        return int(self.rows(f"SELECT count(*) AS n FROM {table} WHERE {where}")[0]["n"])
