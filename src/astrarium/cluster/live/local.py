"""Jobs as processes of this machine. The machines of the file are parts of it: CUDA counts their GPUs one
after another. Jobs outlive an arbiter that is killed; the next one finds them by their folders."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from astrarium.cluster.live.agent import Agent, left_behind
from astrarium.cluster.live.backend import MachineSeen
from astrarium.cluster.live.fleet import Fleet, Reach
from astrarium.cluster.live.keeper import STOP

LOOPBACK = "127.0.0.1"


class LocalReach(Agent):
    def __init__(self, home: Path, name: str, machine: MachineSeen, device_base: int) -> None:
        super().__init__(str(home), name)
        self.machine, self.device_base, self.address = machine, device_base, LOOPBACK

    def port(self) -> int:
        return free_port(LOOPBACK)


class LocalBackend(Fleet):
    def __init__(
        self,
        home: Path,
        machines: Mapping[str, MachineSeen],
        grace: float = 30.0,
        least: float = 0.0,
        env: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(home, grace, least, env)
        self._agents: dict[str, Reach] = {}
        base = 0
        for name, machine in machines.items():
            self._agents[name] = LocalReach(home, name, machine, base)
            base += machine.gpus
        for part, folder in left_behind(home):
            if part.part.machine not in machines:  # it is no longer in the file
                (folder / STOP).touch()

    def reachable(self) -> Mapping[str, Reach]:
        return self._agents


def free_port(address: str) -> int:
    return free_ports(address, 1)[0]


def free_ports(address: str, count: int) -> list[int]:
    """All different. Somebody else may take one before it is used; then the run fails, and is begun again."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((address, 0))
        return [int(one.getsockname()[1]) for one in sockets]
