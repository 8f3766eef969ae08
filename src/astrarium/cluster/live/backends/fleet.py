"""Machines, each with an agent, make one backend: runs are cut into parts, and parts put together again.

A gang lives and dies as one: where a part is lost or fails, the others are stopped, and the run has ended
when all of them have.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from astrarium.cluster.live.backend import Ending, MachineStatus, Order, RunKey, RunStatus, Snapshot
from astrarium.cluster.live.machine.folders import Resume, newest_checkpoint, part_folder, read_claims
from astrarium.cluster.live.machine.keeping.grace import GRACE
from astrarium.cluster.live.machine.parts import PartOrder, PartStatus, how_far

WORST: tuple[Ending, ...] = ("lost", "not found", "failed", "stopped", "unstarted", "finished")
GONE = "its machine is gone"


class AgentHandle(Protocol):
    """What a backend asks of a machine's agent, be it in this process or at the end of a connection."""

    @property
    def machine(self) -> MachineStatus: ...
    @property
    def address(self) -> str: ...
    @property
    def device_base(self) -> int: ...
    def port(self) -> int:
        """Return a port that is free there."""

    def start(self, part: PartOrder) -> None: ...
    def stop(self, key: RunKey) -> None: ...
    def forget(self, key: RunKey) -> None: ...
    def look(self) -> Mapping[RunKey, PartStatus]: ...
    def retry(self, gpu: int) -> None: ...


class MachineFleet:
    """A backend over agents. *grace*: seconds from the wish to stop to the end; *least*: seconds that a run
    may go on once it is up, before it hears of such a wish."""

    def __init__(
        self, home: Path, grace: float = GRACE, least: float = 0.0, env: Mapping[str, str] | None = None
    ) -> None:
        self._home = home
        self._grace = grace
        self._least = least
        self._env = dict(env or {})
        self._ordered: dict[RunKey, Order] = {}  # by us; not yet forgotten
        self._found: dict[RunKey, Order] = {}  # ordered by an arbiter before us
        self._asked: set[RunKey] = set()  # to stop

    def enter(self, epoch: int) -> None:
        """Take orders from this arbiter from now on."""

    def close(self) -> None:
        """Hold nothing: machines of another kind have something to leave."""

    def bring_logs(self, app: str, seconds: float) -> None:
        """Do nothing: the folders of jobs are those that the arbiter reads."""

    def reachable(self) -> Mapping[str, AgentHandle]:
        """Return the agents of the machines that are there, by name."""
        raise NotImplementedError

    def look(self) -> Snapshot:
        there = self.reachable()
        parts: dict[RunKey, dict[int, PartStatus]] = {}
        for agent in there.values():
            for key, status in agent.look().items():
                parts.setdefault(key, {})[status.place] = status
        self._found |= {key: next(iter(statuses.values())).order for key, statuses in parts.items()}
        orders = self._found | self._ordered
        runs = {key: self._whole(order, parts.get(key, {}), there) for key, order in orders.items()}
        return Snapshot({name: agent.machine for name, agent in there.items()}, runs)

    def start(self, order: Order) -> None:
        there = self.reachable()
        if order.key in self._ordered or any(part.machine not in there for part in order.parts):
            return
        resume = self.resume(order)
        if resume is None:
            return
        first = there[order.parts[0].machine]
        gang = len(order.active) > 1 or order.task.processes == "gpu"
        port = first.port() if gang else 0
        self._ordered[order.key] = order
        for place, part in enumerate(order.active):
            agent = there[part.machine]
            agent.start(
                PartOrder(order, place, resume.checkpoint, resume.kept, first.address, port, self._grace,
                          self._least, agent.device_base, {**self._env, **self.extra(order)},
                          agent.machine.gpus if self.resizes(order) else 0, resume.run)
            )  # fmt: skip

    def resizes(self, order: Order) -> bool:
        """Return whether a run can be given other GPUs while it goes on: here, none can."""
        return False

    def resize(self, key: RunKey, order: Order) -> bool:
        return False

    def resume(self, order: Order) -> Resume | None:
        """Return what a run begins from; None while it is on its way: the run is ordered again until then."""
        return newest_checkpoint(self._home, order)

    def kept(self, order: Order) -> float:
        """Return how much of its job's work would not be lost with the run."""
        parts = [read_claims(part_folder(self._home, order, place)) for place in range(len(order.active))]
        return max(how_far(claims, newest_checkpoint(self._home, order).kept)[1] for claims in parts)

    def extra(self, order: Order) -> dict[str, str]:
        """Return what else a job should find in its environment."""
        return {}

    def stop(self, key: RunKey) -> None:
        if key not in self._asked:
            self._asked.add(key)
            for agent in self.reachable().values():
                agent.stop(key)

    def forget(self, key: RunKey) -> None:
        self._ordered.pop(key, None)
        self._found.pop(key, None)
        self._asked.discard(key)
        for agent in self.reachable().values():
            agent.forget(key)

    def retry(self, machine: str, gpu: int) -> None:
        agent = self.reachable().get(machine)
        if agent is not None:
            agent.retry(gpu)

    def _whole(
        self, order: Order, parts: Mapping[int, PartStatus], there: Mapping[str, AgentHandle]
    ) -> RunStatus:
        statuses = [
            parts.get(place) or self._missing_part(order, place, part.machine in there)
            for place, part in enumerate(order.active)
        ]
        progress = max(part.progress for part in statuses)
        kept = max(part.kept for part in statuses)
        ended = together(part.ended for part in statuses)
        if not ended and any(part.ended in WORST[:3] for part in statuses):
            self.stop(order.key)
        error = next((part.error for part in statuses if part.ended == ended and part.error), "")
        now = statuses[0].resized
        trouble = next((part.trouble for part in statuses if part.trouble and not part.ended), "")
        return RunStatus(now.gpus or order.gpus, ended, progress, kept, error, now.run, trouble)

    def _missing_part(self, order: Order, place: int, there: bool) -> PartStatus:
        """Return the status of a part that no agent shows. It is on its way, if this arbiter ordered it; an
        arbiter before may have died before it could order all."""
        if there and order.key in self._ordered:
            return PartStatus(order, place)
        kept = self.kept(order)
        return PartStatus(order, place, "lost", kept, kept, GONE)


def together(endings: Iterable[Ending]) -> Ending:
    """Return the worst of the endings, when all parts have ended."""
    known = set(endings)
    return "" if "" in known else next(ending for ending in WORST if ending in known)


def free_ports(address: str, count: int) -> list[int]:
    """Return so many free ports, all different. Somebody else may take one before it is used; then the run
    fails, and is begun again."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((address, 0))
        return [int(one.getsockname()[1]) for one in sockets]
