"""Policies that serve apps in order keep those that wait in a queue, and ask the best of it next."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from astrarium.cluster.state import AppRow
from astrarium.core.quantities import Time


class QueueEntry(NamedTuple):
    """The place of an app in the queue: the smallest rank first; of equal ranks, who has fewest GPUs, and of
    these who has had so many for longest."""

    rank: float
    gpus: int
    since: Time
    app: int


def idle(row: AppRow) -> bool:
    """Return whether an app has no GPU, and no job of it stands on one whose lease has just ended."""
    return not row.leases and not any(job.gpus for job in row.jobs.values())


def kind(row: AppRow) -> Hashable:
    """Return a key that apps share whose jobs would make the same of any GPUs."""
    if len(row.jobs) > 1 or len(row.app.phases) > 1:
        return row.app.id
    (only,) = row.jobs.values()
    return only.job.least, only.job.most, only.job.model


class WaitingApps:
    """Apps that hold nothing and wait are kept in order, grouped by kind. While an app waits nothing changes
    for it, so that its place is found once; and of apps that are alike, the first is asked first, whatever is
    free."""

    def __init__(self) -> None:
        self._alike: dict[Hashable, list[QueueEntry]] = {}  # each in order
        self._places: dict[int, tuple[Hashable, QueueEntry]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, app: int) -> bool:
        return app in self._places

    def put(self, rank: float, row: AppRow) -> None:
        like = kind(row)
        entry = QueueEntry(rank, 0, row.counted, row.app.id)
        insort(self._alike.setdefault(like, []), entry)
        self._places[row.app.id] = like, entry

    def drop(self, app: int) -> None:
        if app in self._places:
            like, entry = self._places.pop(app)
            alike = self._alike[like]
            del alike[bisect_left(alike, entry)]
            if not alike:
                del self._alike[like]

    def heads(self) -> Iterator[QueueEntry]:
        """Return the first app of each kind."""
        return (alike[0] for alike in self._alike.values())

    def after(self, app: int) -> QueueEntry | None:
        """Return the next app of the same kind."""
        like, entry = self._places[app]
        alike = self._alike[like]
        place = bisect_left(alike, entry) + 1
        return alike[place] if place < len(alike) else None


class RankedQueue:
    """The queue of one step has the apps to ask next: those ranked for the occasion, and of those that wait
    the first of each kind."""

    def __init__(self, waiting: WaitingApps, ranked: Iterable[QueueEntry]) -> None:
        self._waiting = waiting
        self._heap = [*ranked, *waiting.heads()]
        self._followed: set[int] = set()
        heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def pop(self) -> QueueEntry:
        return heappop(self._heap)

    def push(self, entry: QueueEntry) -> None:
        heappush(self._heap, entry)

    def follow(self, app: int) -> None:
        """Let the next app of the same kind in, once."""
        if app in self._waiting and app not in self._followed:
            self._followed.add(app)
            following = self._waiting.after(app)
            if following is not None:
                heappush(self._heap, following)
