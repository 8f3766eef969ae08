"""The agent of a machine as an actor of Ray, and what the arbiter knows of it from afar."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from astrarium.cluster.seen import MachineSeen, RunKey
from astrarium.core.errors import AstrariumError
from astrarium.engines.cluster_agent import Agent, PartOrder, PartSeen
from astrarium.engines.cluster_local import free_ports

PORTS = 16  # gangs that may begin on a machine between two looks


class Fenced(AstrariumError):
    """An order of an arbiter that has been superseded."""


class RayAgent:
    """The actor. Orders of an arbiter are refused when a later one has been here."""

    def __init__(self, home: str, machine: str, address: str) -> None:
        self._agent, self._address, self._epoch = Agent(home, machine, with_agent=True), address, 0

    def look(self, epoch: int) -> tuple[dict[RunKey, PartSeen], list[int]]:
        """What runs here, and ports that are free."""
        self._check(epoch)
        return self._agent.look(), free_ports(self._address, PORTS)

    def order(self, epoch: int, verb: str, about: PartOrder | RunKey) -> None:
        self._check(epoch)
        getattr(self._agent, verb)(about)

    def _check(self, epoch: int) -> None:
        if epoch < self._epoch:
            raise Fenced(f"arbiter {epoch} was superseded by arbiter {self._epoch}")
        self._epoch = epoch


class RayReach:
    """An agent from afar: asked without waiting, and known by its last answer."""

    device_base = 0

    def __init__(self, ray: Any, actor: Any, node: Mapping[str, Any], epoch: int) -> None:
        self._ray, self.actor, self.node, self._epoch = ray, actor, node["NodeID"], epoch
        self.machine = MachineSeen(int(node["Resources"].get("GPU", 0)), _rack(node["Resources"]))
        self.address = str(node["NodeManagerAddress"])
        self._seen: dict[RunKey, PartSeen] = {}
        self._ports, self._orders = [0], list[Any]()
        self.heard_at = time.monotonic()
        self.answered = self.failed = False
        self.pending = self._ask()

    def port(self) -> int:
        """Not the same for two gangs; unless there are too many at once, and all but one begin again."""
        return self._ports.pop() if len(self._ports) > 1 else self._ports[0]

    def look(self) -> Mapping[RunKey, PartSeen]:
        return self._seen

    def start(self, part: PartOrder) -> None:
        self._order("start", part)

    def stop(self, key: RunKey) -> None:
        self._order("stop", key)

    def forget(self, key: RunKey) -> None:
        self._order("forget", key)

    def hear(self) -> None:
        """Take an answer that is there, and ask again."""
        try:
            self._seen, self._ports = self._ray.get(self.pending)
        except self._ray.exceptions.RayError as error:
            if isinstance(error, Fenced):
                raise Fenced(str(getattr(error, "cause", error))) from None
            self.failed = True  # it has died, could not be made, or cannot see its folder
            return
        self.heard_at, self.answered = time.monotonic(), True
        self.pending = self._ask()
        self._check_orders()

    def _ask(self) -> Any:
        return self.actor.look.remote(self._epoch)

    def _order(self, verb: str, about: PartOrder | RunKey) -> None:
        self._orders.append(self.actor.order.remote(self._epoch, verb, about))

    def _check_orders(self) -> None:
        """A machine on which an order cannot be carried out is of no use."""
        if not self._orders:
            return
        ready, self._orders = self._ray.wait(self._orders, num_returns=len(self._orders), timeout=0)
        for order in ready:
            try:
                self._ray.get(order)
            except self._ray.exceptions.RayError:
                self.failed = True


def _rack(resources: Mapping[str, float]) -> int:
    """A machine tells its rack by a resource: `--resources '{"rack-3": 1}'`."""
    racks = [name.removeprefix("rack-") for name in resources if name.startswith("rack-")]
    return int(racks[0]) if racks and racks[0].isdigit() else 0
