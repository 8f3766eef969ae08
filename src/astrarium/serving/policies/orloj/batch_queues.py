"""One model's pending requests stand in a queue by score for each batch size (Orloj, Algorithm 4.1).

A request stands in the queue of a batch size as long as such a batch, sent now, is expected to end in time
for it. Requests of a kind (those whose batches take the same time) are sorted by deadline, so the queue of
a size is what lies from some deadline on: a bisection tells how many it holds, and its earliest deadline.

Scores are needed only of the one queue that is chosen, so only that one is brought up to date, when it is
chosen: it takes in who has come since, and moves or leaves out whoever has passed a milestone. Updating all
queues in every round, as the algorithm is written down, finds the same scores at the price of all of them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from math import exp
from typing import NamedTuple, Protocol

from astrarium.core.quantities import FOREVER, Time
from astrarium.serving.contract import Network, Request
from astrarium.serving.policies.orloj.score import ScoreTable


class ScoreQueue(Protocol):
    """A score queue holds points by id; its best one maximizes alpha * slope + beta."""

    def __contains__(self, id: int) -> bool: ...
    def insert(self, id: int, alpha: float, beta: float) -> None: ...
    def remove(self, id: int) -> None: ...
    def best(self, slope: float) -> int: ...


class Clock(NamedTuple):
    """A clock says when scores are asked for; *rate* is b, per nanosecond, counted from *base*."""

    now: Time
    base: Time
    rate: float

    @property
    def slope(self) -> float:
        return exp(self.rate * (self.now - self.base))


class SizeChoice(NamedTuple):
    """A size choice is a model's batch size; the least goes first: most urgent model, then larger size."""

    deadline: Time  # the earliest of the model, among requests that some batch could serve now
    minus_size: int
    place: int  # of the size


class SizeQueue:
    """A size queue holds the requests of one batch size; it is up to date only after `refresh`."""

    def __init__(self, tables: Sequence[ScoreTable], around: Time, make: Callable[[], ScoreQueue]) -> None:
        self._tables = tables
        self._make = make
        self._around = around  # network delays before and after the execution
        self._costs = [table.mean + around for table in tables]  # by kind
        self.forget()

    def cost(self, kind: int) -> Time:
        """Return the expected time from the decision until the answer."""
        return self._costs[kind]

    def forget(self) -> None:
        """Drop every point: all are computed anew at the next refresh."""
        self._points = self._make()
        self._milestones: list[tuple[Time, int]] = []  # a heap, with entries of requests that have left
        self._fresh: dict[int, None] = {}  # who has no point yet, in order

    def refresh(self, clock: Clock, pending: dict[int, tuple[Time, int]]) -> None:
        milestones = self._milestones
        points = self._points
        while milestones and milestones[0][0] <= clock.now:
            id_ = heappop(milestones)[1]
            if id_ in points:
                points.remove(id_)
                self._place(clock, id_, *pending[id_])
        for id_ in self._fresh:
            self._place(clock, id_, *pending[id_])
        self._fresh.clear()

    def add(self, id_: int) -> None:
        """Let a request be placed at the next refresh."""
        self._fresh[id_] = None

    def remove(self, id_: int) -> None:
        if id_ in self._points:
            self._points.remove(id_)
        else:
            self._fresh.pop(id_, None)

    def best(self, slope: float) -> int:
        return self._points.best(slope)

    def _place(self, clock: Clock, id_: int, deadline: Time, kind: int) -> None:
        """Insert a request unless it is too late for this size; look at it again before its score changes."""
        last = deadline - self._costs[kind]
        if clock.now <= last:
            alpha, beta, milestone = self._tables[kind].point(clock.now, deadline - self._around, clock.base)
            self._points.insert(id_, alpha, beta)
            heappush(self._milestones, (min(milestone, last + 1), id_))


class BatchQueues:
    """Batch queues hold one model's requests by batch size; *latest* turns `choose` around."""

    def __init__(
        self, sizes: Sequence[int], network: Network, make: Callable[[], ScoreQueue], latest: bool = False
    ) -> None:
        self.sizes = sizes
        self._network = network
        self._make = make
        self._latest = latest
        self._pending: dict[int, tuple[Time, int]] = {}  # deadline and kind
        self._sorted: list[list[tuple[Time, int]]] = []  # by kind: deadline and id
        self._queues: list[SizeQueue] = []
        self._cheapest: list[Time] = []  # by kind, over the sizes

    def __len__(self) -> int:
        return len(self._pending)

    def learn(self, tables: Sequence[Sequence[ScoreTable]]) -> None:
        """Score with other tables, by batch size and kind; the number of kinds never changes."""
        delays = [self._network.delay(size) + self._network.response for size in self.sizes]
        self._queues = [SizeQueue(*pair, self._make) for pair in zip(tables, delays, strict=True)]
        kinds = range(len(tables[0]))
        self._cheapest = [min(queue.cost(kind) for queue in self._queues) for kind in kinds]
        self._sorted = self._sorted or [[] for _ in kinds]
        self.forget()

    def forget(self) -> None:
        """Compute every point anew."""
        for queue in self._queues:
            queue.forget()
            for id_ in self._pending:
                queue.add(id_)

    def push(self, request: Request, kind: int) -> None:
        self._pending[request.id] = (request.deadline, kind)
        insort(self._sorted[kind], (request.deadline, request.id))
        for queue in self._queues:
            queue.add(request.id)

    def next_drop(self) -> Time:
        """Return the first instant at which a request is too late for every batch size."""
        heads = zip(self._sorted, self._cheapest, strict=True)
        return min((waiting[0][0] - cost + 1 for waiting, cost in heads if waiting), default=FOREVER)

    def drop(self, now: Time) -> Iterator[int]:
        """Remove and yield the requests that are too late for every batch size."""
        for waiting, cost in zip(self._sorted, self._cheapest, strict=True):
            while waiting and now + cost > waiting[0][0]:
                id_ = waiting[0][1]
                self._remove(id_)
                yield id_

    def choose(self, now: Time) -> SizeChoice | None:
        """Choose, of the sizes that can be filled, the one whose queue begins with the earliest deadline.

        With *latest*, it is the one whose queue begins with the latest.
        """
        fillable: list[tuple[Time, int, int]] = []
        for place, (size, queue) in enumerate(zip(self.sizes, self._queues, strict=True)):
            held, earliest = self._held(now, queue)
            if held >= size:
                fillable.append((earliest, -size, place))
        if not fillable:
            return None
        first = min(fillable)
        chosen = max(fillable, key=lambda candidate: (candidate[0], -candidate[1])) if self._latest else first
        return SizeChoice(first[0], chosen[1], chosen[2])

    def pop(self, clock: Clock, choice: SizeChoice) -> tuple[int, ...]:
        """Remove and return the requests of the best scores, in that order."""
        queue = self._queues[choice.place]
        slope = clock.slope
        queue.refresh(clock, self._pending)
        batch = []
        for _ in range(self.sizes[choice.place]):
            batch.append(queue.best(slope))
            self._remove(batch[-1])
        return tuple(batch)

    def _held(self, now: Time, queue: SizeQueue) -> tuple[int, Time]:
        held = 0
        earliest = FOREVER
        for kind, waiting in enumerate(self._sorted):
            first = bisect_left(waiting, (now + queue.cost(kind),))
            if first < len(waiting):
                held += len(waiting) - first
                earliest = min(earliest, waiting[first][0])
        return held, earliest

    def _remove(self, id_: int) -> None:
        deadline, kind = self._pending.pop(id_)
        waiting = self._sorted[kind]
        del waiting[bisect_left(waiting, (deadline, id_))]
        for queue in self._queues:
            queue.remove(id_)
