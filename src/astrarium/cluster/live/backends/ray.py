"""This backend runs jobs on the machines of a Ray cluster.

Every machine has a resident agent, an actor that outlives the arbiter and ends with its machine. Jobs are its
processes, and end with it. A run holds a placement group with a bundle for each of its GPUs, pinned to their
machines, so that nothing else that Ray starts is given them; it begins when Ray has made the group.

Ray needs about a quarter of a minute to notice that a machine is gone. An agent that is silent for longer
than our patience is taken to be gone with all that it ran, and is ended if it is not.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from astrarium.cluster.live.backend import Fenced, MachineStatus, Order, RunKey, RunStatus, Snapshot
from astrarium.cluster.live.backends.fleet import AgentHandle, MachineFleet, free_ports
from astrarium.cluster.live.machine.agent import MachineAgent
from astrarium.cluster.live.machine.disk_thread import DiskThread
from astrarium.cluster.live.machine.folders import newest_checkpoint
from astrarium.cluster.live.machine.health.watch import HealthWatch
from astrarium.cluster.live.machine.keeping.grace import GRACE, PATIENCE
from astrarium.cluster.live.machine.parts import PartOrder, PartStatus
from astrarium.core.errors import InputError
from astrarium.core.optional import from_extra

PORTS = 16  # gangs that may begin on a machine between two looks


class RayAgent:
    """The agent of a machine as a Ray actor, which refuses orders once a later arbiter has been here."""

    def __init__(self, home: str, machine: str, address: str) -> None:
        self._agent = MachineAgent(home, machine, with_agent=True)
        self._address = address
        self._epoch = 0
        self._disk = DiskThread(lambda: self._agent.look())
        self._orders = 0
        self._health = HealthWatch()

    def look(
        self, epoch: int, machine: MachineStatus
    ) -> tuple[dict[RunKey, PartStatus], list[int], MachineStatus]:
        """Return what runs here, as it was last seen, ports that are free, and the machine with the health
        of its GPUs. An order that could not be carried out raises here."""
        self._check(epoch)
        return self._disk.look(), free_ports(self._address, PORTS), self._health.seen(machine)

    def order(self, epoch: int, verb: str, about: PartOrder | RunKey | int) -> None:
        self._check(epoch)
        of = self._health if verb == "retry" else self._agent
        self._orders += 1
        self._disk.order(self._orders, partial(getattr(of, verb), about))

    def _check(self, epoch: int) -> None:
        if epoch < self._epoch:
            raise Fenced(f"arbiter {epoch} was superseded by arbiter {self._epoch}")
        self._epoch = epoch


class RayAgentHandle:
    """An agent as the arbiter knows it from afar: asked without waiting, and known by its last answer."""

    device_base = 0

    def __init__(self, ray: Any, actor: Any, node: Mapping[str, Any], epoch: int) -> None:
        self._ray = ray
        self.actor = actor
        self.node = node["NodeID"]
        self._epoch = epoch
        self.machine = MachineStatus(int(node["Resources"].get("GPU", 0)), _rack(node["Resources"]))
        self.address = str(node["NodeManagerAddress"])
        self._parts: dict[RunKey, PartStatus] = {}
        self._ports = [0]
        self._orders = list[Any]()
        self.heard_at = time.monotonic()
        self.answered = self.failed = False
        self.pending = self._ask()

    def port(self) -> int:
        """Return a free port; with too many gangs at once two may share one, and one begins again."""
        return self._ports.pop() if len(self._ports) > 1 else self._ports[0]

    def look(self) -> Mapping[RunKey, PartStatus]:
        return self._parts

    def start(self, part: PartOrder) -> None:
        self._order("start", part)

    def stop(self, key: RunKey) -> None:
        self._order("stop", key)

    def forget(self, key: RunKey) -> None:
        self._order("forget", key)

    def retry(self, gpu: int) -> None:
        self._order("retry", gpu)

    def hear(self) -> None:
        """Take an answer that is there, and ask again."""
        try:
            self._parts, self._ports, self.machine = self._ray.get(self.pending)
        except self._ray.exceptions.RayError as error:
            if isinstance(error, Fenced):
                raise Fenced(str(getattr(error, "cause", error))) from None
            self.failed = True  # it has died, could not be made, or cannot see its folder
            return
        self.heard_at = time.monotonic()
        self.answered = True
        self.pending = self._ask()
        self._check_orders()

    def _ask(self) -> Any:
        return self.actor.look.remote(self._epoch, self.machine)

    def _order(self, verb: str, about: PartOrder | RunKey | int) -> None:
        self._orders.append(self.actor.order.remote(self._epoch, verb, about))

    def _check_orders(self) -> None:
        """Give up a machine on which an order could not be carried out: it is of no use."""
        if not self._orders:
            return
        ready, self._orders = self._ray.wait(self._orders, num_returns=len(self._orders), timeout=0)
        for order in ready:
            try:
                self._ray.get(order)
            except self._ray.exceptions.RayError:
                self.failed = True


def _rack(resources: Mapping[str, float]) -> int:
    """Return the rack of a machine, which it tells by a resource: `--resources '{"rack-3": 1}'`."""
    racks = [name.removeprefix("rack-") for name in resources if name.startswith("rack-")]
    return int(racks[0]) if racks and racks[0].isdigit() else 0


NAMESPACE = "astrarium"
FIRST_ANSWER = 120.0  # seconds that a new agent, or the first look at an old one, may take
SHORT = 12  # signs of a machine's number in Ray that tell it from others
SCAN = 1.0  # seconds between looks for machines that have joined


class RayBackend(MachineFleet):
    """A backend on the machines of a Ray cluster; one that is silent for *patience* seconds is gone."""

    def __init__(
        self,
        home: Path,
        address: str = "auto",
        grace: float = GRACE,
        least: float = 0.0,
        patience: float = PATIENCE,
        env: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(home, grace, least, env)
        with from_extra("ray"):
            import ray
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
        self._ray: Any = ray
        self._on_node: Any = NodeAffinitySchedulingStrategy
        self._patience = patience
        self._epoch = 0
        self._prefix = f"astrarium-{hashlib.sha256(str(home).encode()).hexdigest()[:8]}"
        self._agents: dict[str, RayAgentHandle] = {}
        self._waiting: dict[RunKey, tuple[Order, Any]] = {}  # for their placement groups
        self._given_up: dict[RunKey, Order] = {}  # before they were started
        self._scanned_at = float("-inf")
        if not ray.is_initialized():
            self._connect(address)
        self._address = ray.get_runtime_context().gcs_address

    def _connect(self, address: str) -> None:
        options = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": logging.ERROR}
        try:
            self._ray.init(address=address, **options)
        except (ConnectionError, ValueError) as error:
            expected = f"a Ray cluster that is running ({str(error).splitlines()[0]})"
            raise InputError("live.address", address, expected) from None

    def enter(self, epoch: int) -> None:
        """Take over: all that is there is seen before the first decision."""
        self._epoch = epoch
        self._find_agents()
        ends = time.monotonic() + FIRST_ANSWER
        while time.monotonic() < ends:
            self._scan()
            self._hear()
            if all(agent.answered for agent in self._agents.values()):
                break
            time.sleep(0.05)
        self._clear_groups()

    def reachable(self) -> Mapping[str, AgentHandle]:
        return {name: agent for name, agent in self._agents.items() if agent.answered}

    def look(self) -> Snapshot:
        self._scan()
        self._hear()
        self._begin()
        snapshot = super().look()
        waiting = {key: RunStatus(order.gpus) for key, (order, _) in self._waiting.items()}
        left = {key: self._unstarted(order) for key, order in self._given_up.items()}
        return Snapshot(snapshot.machines, {**snapshot.runs, **waiting, **left})

    def start(self, order: Order) -> None:
        there = self.reachable()
        known = order.key in self._ordered or order.key in self._waiting
        if known or any(order.key in agent.look() for agent in there.values()):
            return
        if all(part.machine in there for part in order.parts):
            self._waiting[order.key] = order, self._group(order)

    def stop(self, key: RunKey) -> None:
        if key in self._waiting:
            order, group = self._waiting.pop(key)
            self._ray.util.remove_placement_group(group)
            self._given_up[key] = order
        else:
            super().stop(key)

    def forget(self, key: RunKey) -> None:
        self._given_up.pop(key, None)
        super().forget(key)
        self._remove_group(self._group_name(key))

    def extra(self, order: Order) -> dict[str, str]:
        """Return what an app finds in its environment that is a Ray program itself."""
        return {"RAY_ADDRESS": self._address, "RAY_NAMESPACE": NAMESPACE,
                "ASTRARIUM_PLACEMENT_GROUP": self._group_name(order.key)}  # fmt: skip

    def close(self) -> None:
        """Leave; agents that run something, or have an end to tell to the next arbiter, stay."""
        if not self.look().runs:
            self.dismiss()
        self._ray.shutdown()

    def dismiss(self) -> None:
        """End all agents, and with them what they run."""
        for agent in self._agents.values():
            self._ray.kill(agent.actor)
        self._agents.clear()
        self._clear_groups()

    def _find_agents(self) -> None:
        """Take over the agents of an arbiter before this one."""
        nodes = {node["NodeID"][:SHORT]: node for node in self._nodes()}
        for name in self._ray.util.list_named_actors():
            prefix, _, machine = name.partition("/")
            node = nodes.get(machine.rpartition(".")[0].rpartition("-")[2])
            if prefix == self._prefix and node is not None:
                self._agents[machine] = RayAgentHandle(
                    self._ray, self._ray.get_actor(name), node, self._epoch
                )

    def _scan(self) -> None:
        now = time.monotonic()
        if now - self._scanned_at < SCAN:
            return
        self._scanned_at = now
        nodes = {node["NodeID"]: node for node in self._nodes()}
        for name in [name for name, agent in self._agents.items() if agent.node not in nodes]:
            self._drop(name)
        known = {agent.node for agent in self._agents.values()}
        for number in nodes.keys() - known:
            self._hire(nodes[number])

    def _nodes(self) -> Iterator[Mapping[str, Any]]:
        for node in self._ray.nodes():
            if node["Alive"] and node["Resources"].get("GPU", 0) >= 1:
                yield node

    def _hire(self, node: Mapping[str, Any]) -> None:
        """Start an agent under a name that no other ever had: a machine that comes back is a new one."""
        host = node["NodeManagerHostname"]
        number = node["NodeID"][:SHORT]
        machine = f"{host}-{number}.{time.time_ns() // 1_000_000}"
        options = self._ray.remote(RayAgent).options(
            name=f"{self._prefix}/{machine}", lifetime="detached", num_cpus=0, max_restarts=0,
            scheduling_strategy=self._on_node(node["NodeID"], soft=False),
        )  # fmt: skip
        actor = options.remote(str(self._home), machine, str(node["NodeManagerAddress"]))
        self._agents[machine] = RayAgentHandle(self._ray, actor, node, self._epoch)

    def _hear(self) -> None:
        asked = {agent.pending: name for name, agent in self._agents.items()}
        if asked:
            ready, _ = self._ray.wait(list(asked), num_returns=len(asked), timeout=0)
            for answer in ready:
                self._agents[asked[answer]].hear()
        now = time.monotonic()
        for name, agent in list(self._agents.items()):
            patience = self._patience if agent.answered else FIRST_ANSWER
            if agent.failed or now - agent.heard_at > patience:
                self._drop(name)

    def _drop(self, name: str) -> None:
        """Give up an agent. It may still run, cut off from us: if an order to end reaches it, its jobs end
        with it. What they write meanwhile is looked at by nobody."""
        self._ray.kill(self._agents.pop(name).actor)

    def _group_name(self, key: RunKey) -> str:
        return f"{self._prefix}/{key.app}-{key.job}-{key.run}"

    def _group(self, order: Order) -> Any:
        nodes = [self._agents[part.machine].node for part in order.parts for _ in part.gpus]
        return self._ray.util.placement_group(
            [{"GPU": 1.0} for _ in nodes], strategy="PACK", name=self._group_name(order.key),
            lifetime="detached", bundle_label_selector=[{"ray.io/node-id": node} for node in nodes],
        )  # fmt: skip

    def _begin(self) -> None:
        """Start the runs that have their placement groups."""
        for key, (order, group) in list(self._waiting.items()):
            if self._ray.util.placement_group_table(group).get("state") == "CREATED":
                del self._waiting[key]
                super().start(order)
            elif any(part.machine not in self._agents for part in order.parts):
                self.stop(key)

    def _unstarted(self, order: Order) -> RunStatus:
        kept = newest_checkpoint(self._home, order).kept
        return RunStatus(order.gpus, "unstarted", kept, kept)

    def _clear_groups(self) -> None:
        """Remove the groups of runs that no agent knows: an arbiter before us did not get further."""
        known = {self._group_name(key) for agent in self._agents.values() for key in agent.look()}
        for group in self._ray.util.placement_group_table().values():
            ours = group["name"].startswith(f"{self._prefix}/") and group["state"] != "REMOVED"
            if ours and group["name"] not in known:
                self._remove_group(group["name"])

    def _remove_group(self, name: str) -> None:
        try:
            self._ray.util.remove_placement_group(self._ray.util.get_placement_group(name))
        except ValueError:
            return  # there is none any more
