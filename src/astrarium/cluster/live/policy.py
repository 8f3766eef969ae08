"""A live cluster wraps its policy, and keeps it as bytes with all that it remembers.

What a policy remembers may point into the books: to rows of apps, to the machines. Those are named, not
copied, so that a policy which is unpickled beside the same books points into them again.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

from astrarium.cluster.contract import Allocations, AppArrived, Event, Grant, LeaseExpired, MachineJoined
from astrarium.cluster.policies import Allocator
from astrarium.cluster.state import AppRow, ClusterState
from astrarium.core.quantities import FOREVER, Time


class TakeoverAllocator:
    """A policy that takes over from another in the middle hears of all that is there before its first
    decision. It hears of it as if it had just come. The books, which know when it really came, do not hear it
    again."""

    def __init__(self, allocator: Allocator) -> None:
        self.allocator = allocator
        self._knows = False

    def decide(self, now: Time, events: Sequence[Event], state: ClusterState) -> Allocations:
        if not self._knows:
            self._knows = True
            fresh = {event for event in events if isinstance(event, MachineJoined)}
            arrived = {event.app.id for event in events if isinstance(event, AppArrived)}
            machines = (MachineJoined(machine) for machine in state.floor.machines.values())
            apps = (AppArrived(row.app) for row in state.apps.values() if row.app.id not in arrived)
            events = (*(joined for joined in machines if joined not in fresh), *apps, *events)
        yield from self.allocator.decide(now, events, state)


WHY = "its command cannot be stopped without losing all it has done"


class NonPreemptibleAllocator:
    """A policy is asked only about GPUs on which no *lasting* app runs (that cannot be stopped). Those apps
    keep their GPUs to their end. A policy that takes GPUs back before leases end is not held up: then the
    books say that the job was stopped, and whoever is given its GPUs waits until it has ended."""

    def __init__(self, allocator: Allocator, lasting: Callable[[int], bool]) -> None:
        self.allocator = allocator
        self._lasting = lasting

    def decide(self, now: Time, events: Sequence[Event], state: ClusterState) -> Allocations:
        for event in events:
            if isinstance(event, LeaseExpired) and event.app in state.apps and self._lasting(event.app):
                used = {gpu for job in state.apps[event.app].jobs.values() for gpu in job.gpus}
                gpus = tuple(gpu for gpu in event.gpus if gpu in used and gpu in state.free)
                if gpus:
                    yield Grant(event.app, gpus, FOREVER, WHY)
        yield from self.allocator.decide(now, events, state)


# What stands for a part of the books in the bytes of a policy: its kind, and which field, app or job it is.
PartName: TypeAlias = (
    tuple[Literal["state"]]
    | tuple[Literal["part"], str]
    | tuple[Literal["row", "jobs", "leases"], int]
    | tuple[Literal["job"], int, int]
)


class _PolicyPickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, state: ClusterState) -> None:
        super().__init__(file)
        self._names: dict[int, PartName] = {id(state): ("state",)}
        for name, value in vars(state).items():
            if isinstance(value, dict | set | list) or hasattr(value, "__dict__"):
                self._names[id(value)] = ("part", name)
        for app, row in state.apps.items():
            self._names[id(row.jobs)] = ("jobs", app)
            self._names[id(row.leases)] = ("leases", app)
            self._names.update({id(job): ("job", app, number) for number, job in row.jobs.items()})
        self._rows = state.ledger.rows

    def persistent_id(self, part: Any) -> PartName | None:
        if isinstance(part, AppRow):
            app = part.app.id
            return ("row", app) if self._rows.get(app) is part else None
        return self._names.get(id(part))


class _PolicyUnpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, state: ClusterState) -> None:
        super().__init__(file)
        self._state = state

    def persistent_load(self, name: PartName) -> Any:
        match name:
            case ("state",):
                return self._state
            case ("part", field):
                return getattr(self._state, field)
            case ("row", app):
                return self._state.ledger.rows[app]
            case ("job", app, number):
                return self._state.ledger.rows[app].jobs[number]
            case (kind, app):  # jobs or leases
                return getattr(self._state.ledger.rows[app], kind)


def pickled_policy(policy: object, state: ClusterState) -> bytes | None:
    """Return a policy as bytes; None where a stranger's policy holds what cannot be kept."""
    file = io.BytesIO()
    try:
        _PolicyPickler(file, state).dump(policy)
    except Exception:
        return None
    return file.getvalue()


def unpickled_policy(kept: bytes | None, state: ClusterState) -> Any:
    """Return a policy from its bytes; None where there are none, or another version wrote them."""
    if kept is None:
        return None
    try:
        return _PolicyUnpickler(io.BytesIO(kept), state).load()
    except Exception:
        return None
