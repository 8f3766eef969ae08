"""Workers that hold a batch or load a model for far too long are stuck, and are killed.

Only time in which the frontend listened counts against a worker. How late the frontend itself has lately been
is what this machine does to any process now: workers are given as much more time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from astrarium.core.quantities import FOREVER, MILLISECOND, SECOND, Time
from astrarium.server.control.workers.worker_entry import WorkerEntry
from astrarium.serving.live.process import Death
from astrarium.serving.live.workers import Workers

LOOK_EVERY = 100 * MILLISECOND  # between two looks, as planned
STOPPED_LIMIT = 300 * MILLISECOND  # for a batch whose worker was stopped: it will not go on by itself
SHORTEST_LOAD_LIMIT = 10 * SECOND
LOAD_TOO_LONG = 10  # times what the last load took: then this one is stuck
LATE_FOR = 30 * SECOND  # how long a late look is remembered
_NO_BATCH = -1, FOREVER


class Lateness:
    """Lateness is how much later than planned the frontend has lately looked after its workers."""

    def __init__(self, clock: Callable[[], Time]) -> None:
        self._clock = clock
        self._looked: Time = 0  # 0: not yet
        self.late: Time = 0
        self._late_at: Time = 0

    def look(self) -> Time:
        """Return how much of the time since the last look counts; remember how late this one comes."""
        now = self._clock()
        since = now - self._looked if self._looked else LOOK_EVERY
        self._looked = now
        late = max(0, since - LOOK_EVERY)
        if late >= self.late or now - self._late_at > LATE_FOR:
            self.late = late
            self._late_at = now
        return min(since, LOOK_EVERY)


class StuckWorkers:
    """Workers that were over their limit at the last look already are killed.

    News that lay in the sockets while the frontend was stopped or starved is heard between two looks. A
    look that comes late counts no more than one that does not. Time in which nobody heard workers, because a
    policy in Python thought, does not count.
    """

    def __init__(
        self,
        lateness: Lateness,
        oldest: Callable[[int], tuple[int, Time] | None],
        heard_until: Callable[[], Time],
    ) -> None:
        self._lateness = lateness
        self._oldest = oldest
        self._heard_until = heard_until
        self._heard: Time = 0  # at the last look
        self.load_times: dict[int, Time] = {}  # by model, the last time that it could be loaded

    def check(self, entries: Iterable[WorkerEntry], workers: Workers) -> None:
        passed = min(self._lateness.look(), self._newly_heard())
        for entry in entries:
            self._check_batch(entry, passed, workers)
            self._check_load(entry, passed, workers)

    def _newly_heard(self) -> Time:
        """Return for how long workers were heard since the last look."""
        before = self._heard
        self._heard = self._heard_until()
        return self._heard - before

    def _check_batch(self, entry: WorkerEntry, passed: Time, workers: Workers) -> None:
        worker = entry.spec.worker
        batch, limit = self._oldest(worker) or _NO_BATCH
        if batch != entry.batch:
            entry.batch = batch
            entry.batch_held_for = 0
        elif entry.batch_held_for > self._lateness.late + self._limit(entry, limit, workers):
            reason = f"was stuck: it held a batch for {entry.batch_held_for / SECOND:.1f} s"
            workers.kill(worker, Death(reason, by_its_work=not workers.is_stopped(worker)))
        if entry.batch >= 0:  # only time in which it has a batch counts against it
            entry.batch_held_for += passed

    @staticmethod
    def _limit(entry: WorkerEntry, limit: Time, workers: Workers) -> Time:
        stopped = entry.batch_held_for > STOPPED_LIMIT and workers.is_stopped(entry.spec.worker)
        return STOPPED_LIMIT if stopped else limit

    def _check_load(self, entry: WorkerEntry, passed: Time, workers: Workers) -> None:
        """Kill a worker that loads a model for much longer than that took before: others wait for it."""
        if entry.loading < 0:
            return
        entry.loading_for += passed
        before = self.load_times.get(entry.loading)
        if before is None:
            return  # of a first load nobody knows how long it takes: `server.start_limit` is for that
        if entry.loading_for > self._lateness.late + max(SHORTEST_LOAD_LIMIT, LOAD_TOO_LONG * before):
            reason = f"was stuck: it loaded a model for {entry.loading_for / SECOND:.1f} s"
            workers.kill(entry.spec.worker, Death(reason))
