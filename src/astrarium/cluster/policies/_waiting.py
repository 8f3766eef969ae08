"""Those who hold nothing and wait, in order. While an app waits nothing changes for it, so that its place is
found once; and of apps that are alike, the first is asked first, whatever is free."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterable, Iterator
from heapq import heapify, heappop, heappush

from astrarium.cluster.ledger import AppRow
from astrarium.core.units import Time

Entry = tuple[float, Time, int]  # rank, arrival, app


def idle(row: AppRow) -> bool:
    """It has no GPU, and nothing of it stands on one whose lease has just ended."""
    return not row.leases and not any(job.gpus for job in row.jobs.values())


def kind(row: AppRow) -> Hashable:
    """The same for apps whose jobs would make the same of any GPUs; others are like nobody else."""
    if len(row.jobs) > 1 or len(row.app.phases) > 1:
        return row.app.id
    (only,) = row.jobs.values()
    return only.job.least, only.job.most, only.job.model


class Line:
    def __init__(self) -> None:
        self._alike: dict[Hashable, list[Entry]] = {}  # each in order
        self._places: dict[int, tuple[Hashable, Entry]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, app: int) -> bool:
        return app in self._places

    def put(self, rank: float, row: AppRow) -> None:
        like, entry = kind(row), (rank, row.arrived, row.app.id)
        insort(self._alike.setdefault(like, []), entry)
        self._places[row.app.id] = like, entry

    def drop(self, app: int) -> None:
        if app in self._places:
            like, entry = self._places.pop(app)
            alike = self._alike[like]
            del alike[bisect_left(alike, entry)]
            if not alike:
                del self._alike[like]

    def heads(self) -> Iterator[Entry]:
        """The first of each kind."""
        return (alike[0] for alike in self._alike.values())

    def after(self, app: int) -> Entry | None:
        """The next of its kind."""
        like, entry = self._places[app]
        alike = self._alike[like]
        place = bisect_left(alike, entry) + 1
        return alike[place] if place < len(alike) else None


class Queue:
    """Who is asked next: apps that were ranked for the occasion, and of the line the first of each kind."""

    def __init__(self, line: Line, ranked: Iterable[Entry]) -> None:
        self._line, self._heap = line, [*ranked, *line.heads()]
        self._followed: set[int] = set()
        heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def pop(self) -> Entry:
        return heappop(self._heap)

    def push(self, entry: Entry) -> None:
        heappush(self._heap, entry)

    def follow(self, app: int) -> None:
        """The next of its kind comes in, once."""
        if app in self._line and app not in self._followed:
            self._followed.add(app)
            following = self._line.after(app)
            if following is not None:
                heappush(self._heap, following)
