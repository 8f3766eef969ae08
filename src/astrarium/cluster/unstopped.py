"""Apps that cannot be stopped keep their GPUs to their end, whatever the policy."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

from astrarium.cluster.actions import Grant, Revoke
from astrarium.cluster.events import Event, LeaseExpired
from astrarium.cluster.ledger import AppRow
from astrarium.cluster.registry import Allocator
from astrarium.cluster.state import ClusterState
from astrarium.core.policy import SetTimer
from astrarium.core.units import FOREVER, Time

WHY = "its command cannot be stopped without losing all it has done"


class Unstopped:
    """An allocator that is asked only about GPUs which the *apps* that cannot be stopped do not run on.

    Who takes GPUs back before leases end is not held up: then the books say that the job was stopped, and
    whoever is given its GPUs waits until it has ended.
    """

    def __init__(self, allocator: Allocator, apps: Container[int]) -> None:
        self.allocator, self._apps = allocator, apps

    def allocate(
        self, now: Time, events: Sequence[Event], state: ClusterState
    ) -> Iterator[Grant | Revoke | SetTimer]:
        for event in events:
            if isinstance(event, LeaseExpired) and event.app in self._apps and event.app in state.apps:
                gpus = _stands_on(state.apps[event.app], event.gpus, state)
                if gpus:
                    yield Grant(event.app, gpus, FOREVER, WHY)
        yield from self.allocator.allocate(now, events, state)


def _stands_on(row: AppRow, gpus: Sequence[int], state: ClusterState) -> tuple[int, ...]:
    used = {gpu for job in row.jobs.values() for gpu in job.gpus}
    return tuple(gpu for gpu in gpus if gpu in used and gpu in state.free)
