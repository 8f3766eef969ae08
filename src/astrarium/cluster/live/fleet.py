"""Machines, each with an agent, as one backend: runs are cut into parts, and parts put together again.

A gang lives and dies as one: where a part is lost or fails, the others are stopped, and the run has ended
when all of them have.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from astrarium.cluster.live.agent import Agent, PartOrder, PartSeen, left_behind
from astrarium.cluster.live.backend import Ending, MachineSeen, Order, Picture, RunKey, RunSeen
from astrarium.cluster.live.folders import newest_checkpoint
from astrarium.cluster.live.keeper import STOP

_WORST: tuple[Ending, ...] = ("lost", "failed", "stopped", "finished")
GONE = "its machine is gone"


class Reach(Protocol):
    """An agent, wherever it is."""

    @property
    def machine(self) -> MachineSeen: ...
    @property
    def address(self) -> str: ...
    @property
    def device_base(self) -> int: ...
    def port(self) -> int:
        """One that is free there."""

    def start(self, part: PartOrder) -> None: ...
    def stop(self, key: RunKey) -> None: ...
    def forget(self, key: RunKey) -> None: ...
    def look(self) -> Mapping[RunKey, PartSeen]: ...


class Fleet:
    """A backend over agents. *grace*: seconds from the wish to stop to the end; *least*: seconds that a run
    may go on once it is up, before it hears of such a wish."""

    def __init__(
        self, home: Path, grace: float = 30.0, least: float = 0.0, env: Mapping[str, str] | None = None
    ) -> None:
        self._home, self._grace, self._least, self._env = home, grace, least, dict(env or {})
        self._ordered: dict[RunKey, Order] = {}  # by us; not yet forgotten
        self._found: dict[RunKey, Order] = {}  # ordered by an arbiter before us
        self._asked: set[RunKey] = set()  # to stop

    def enter(self, epoch: int) -> None:
        """Orders are those of this arbiter from now on."""

    def reachable(self) -> Mapping[str, Reach]:
        """Agents of the machines that are there, by name."""
        raise NotImplementedError

    def look(self) -> Picture:
        there = self.reachable()
        parts: dict[RunKey, dict[int, PartSeen]] = {}
        for reach in there.values():
            for key, seen in reach.look().items():
                parts.setdefault(key, {})[seen.place] = seen
        self._found |= {key: next(iter(seen.values())).order for key, seen in parts.items()}
        orders = self._found | self._ordered
        runs = {key: self._whole(order, parts.get(key, {}), there) for key, order in orders.items()}
        return Picture({name: reach.machine for name, reach in there.items()}, runs)

    def start(self, order: Order) -> None:
        there = self.reachable()
        if order.key in self._ordered or any(part.machine not in there for part in order.parts):
            return
        self._ordered[order.key] = order
        resume = newest_checkpoint(self._home, order)
        first = there[order.parts[0].machine]
        gang = len(order.active) > 1 or order.task.processes == "gpu"
        port = first.port() if gang else 0
        for place, part in enumerate(order.active):
            reach = there[part.machine]
            reach.start(
                PartOrder(order, place, resume.checkpoint, resume.kept, first.address, port, self._grace,
                          self._least, reach.device_base, {**self._env, **self.extra(order)})
            )  # fmt: skip

    def extra(self, order: Order) -> dict[str, str]:
        """What else a job should find in its environment."""
        return {}

    def stop(self, key: RunKey) -> None:
        if key not in self._asked:
            self._asked.add(key)
            for reach in self.reachable().values():
                reach.stop(key)

    def forget(self, key: RunKey) -> None:
        self._ordered.pop(key, None)
        self._found.pop(key, None)
        self._asked.discard(key)
        for reach in self.reachable().values():
            reach.forget(key)

    def _whole(self, order: Order, parts: Mapping[int, PartSeen], there: Mapping[str, Reach]) -> RunSeen:
        seen = [
            parts.get(place) or self._unseen(order, place, part.machine in there)
            for place, part in enumerate(order.active)
        ]
        progress, kept = max(part.progress for part in seen), max(part.kept for part in seen)
        ended = _together(part.ended for part in seen)
        if not ended and any(part.ended in ("lost", "failed") for part in seen):
            self.stop(order.key)
        error = next((part.error for part in seen if part.ended == ended and part.error), "")
        return RunSeen(order.gpus, ended, progress, kept, error)

    def _unseen(self, order: Order, place: int, there: bool) -> PartSeen:
        """On its way, if it was we who ordered it; an arbiter before us died before it could order all."""
        if there and order.key in self._ordered:
            return PartSeen(order, place)
        return PartSeen(order, place, "lost", error=GONE)


def _together(endings: Iterable[Ending]) -> Ending:
    """The worst of them, when all have ended."""
    found = set(endings)
    return "" if "" in found else next(each for each in _WORST if each in found)


# Jobs as processes of this machine. The machines of the file are parts of it: CUDA counts their GPUs one
# after another. Jobs outlive an arbiter that is killed; the next one finds them by their folders.


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
