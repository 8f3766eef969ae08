"""This backend runs jobs on the arbiter's own machine, of which the machines of the file are parts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from astrarium.cluster.live.backend import MachineStatus, Order, RunKey
from astrarium.cluster.live.backends.fleet import AgentHandle, MachineFleet, free_ports
from astrarium.cluster.live.machine.agent import MachineAgent
from astrarium.cluster.live.machine.health.watch import HealthWatch
from astrarium.cluster.live.machine.keeping.grace import GRACE
from astrarium.cluster.live.machine.keeping.records import STOP, mark
from astrarium.cluster.live.machine.parts import left_behind

LOOPBACK = "127.0.0.1"


class LocalAgent(MachineAgent):
    def __init__(
        self, home: Path, name: str, machine: MachineStatus, device_base: int, health: HealthWatch
    ) -> None:
        super().__init__(str(home), name)
        self._plain = machine
        self._health = health
        self.device_base = device_base
        self.address = LOOPBACK

    @property
    def machine(self) -> MachineStatus:
        return self._health.seen(self._plain, self.device_base)

    def retry(self, gpu: int) -> None:
        self._health.retry(self.device_base + gpu)

    def port(self) -> int:
        return free_ports(LOOPBACK, 1)[0]


class LocalBackend(MachineFleet):
    """Jobs run as processes of this machine; the machines of the file are parts of it. CUDA counts their GPUs
    one after another. Jobs outlive an arbiter that is killed; the next one finds them by their folders."""

    def __init__(
        self,
        home: Path,
        machines: Mapping[str, MachineStatus],
        grace: float = GRACE,
        least: float = 0.0,
        env: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(home, grace, least, env)
        self._agents: dict[str, LocalAgent] = {}
        base = 0
        health = HealthWatch()
        for name, machine in machines.items():
            self._agents[name] = LocalAgent(home, name, machine, base, health)
            base += machine.gpus
        for part, folder in left_behind(home):
            if part.part.machine not in machines:  # it is no longer in the file
                mark(folder / STOP)

    def reachable(self) -> Mapping[str, AgentHandle]:
        return self._agents

    def resizes(self, order: Order) -> bool:
        """Return whether it is one process, or one on its only machine, that says that it can."""
        return order.task.elastic and len(order.parts) == 1

    def resize(self, key: RunKey, order: Order) -> bool:
        """Give a run more or fewer GPUs of its machine. Others in exchange it gets by a new start: two that
        wait for each other's GPUs would wait for ever."""
        before = (self._found | self._ordered).get(key)
        if before is None or not (self.resizes(before) and self.resizes(order)):
            return False
        if before.parts[0].machine != order.parts[0].machine:
            return False
        self._agents[order.parts[0].machine].resize(key, order)
        return True
