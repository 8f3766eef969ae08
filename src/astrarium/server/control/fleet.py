"""The fleet starts the workers, gives them models and batches, and starts those again that die.

A worker that dies is started anew after a pause that doubles from death to death and is forgotten once the
worker has lived a while. A worker that holds a batch far longer than it should is taken for stuck and killed.

Only time in which the frontend listened counts against a worker. How late the frontend itself has lately been
is what this machine does to any process now: workers are given as much more time, both before they are taken
for stuck and before they are started again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from astrarium.core.units import FOREVER, MILLISECOND, SECOND, Time
from astrarium.server.control.tickets import InFlightBatch
from astrarium.serving.live import messages
from astrarium.serving.live.backends.contract import ModelFiles, powers_to
from astrarium.serving.live.messages import BatchBroken, BatchCancelled, BatchDone, ModelNews, Pong, RunBatch
from astrarium.serving.live.worker import files_to
from astrarium.serving.live.workers import Workers, WorkerSpec

FIRST_PAUSE, LONGEST_PAUSE = 100 * MILLISECOND, 10 * SECOND
GOOD_LIFE = 30 * SECOND  # after this a death counts as the first
LOOK_EVERY = 100 * MILLISECOND  # between two calls of `check_for_stuck`, as planned
STOPPED_LIMIT = 300 * MILLISECOND  # for a batch whose worker was stopped: it will not go on by itself
LATE_FOR = 30 * SECOND  # how long a late look is remembered
_NO_BATCH = -1, FOREVER
Oldest = Callable[[int], tuple[int, Time] | None]  # of a worker: the batch it has held longest, and its limit
log = logging.getLogger("astrarium.fleet")


class FleetController(Protocol):
    """The fleet reports to its controller, which also tells what batches consist of."""

    def inputs_ready(self, flight: InFlightBatch) -> bool: ...
    def order(self, flight: InFlightBatch) -> RunBatch: ...
    def worker_ready(self, gpu: int) -> None: ...
    def worker_lost(self, gpu: int, flights: Sequence[InFlightBatch], reason: str) -> None: ...
    def returned(self, flight: InFlightBatch, news: BatchDone | BatchBroken | BatchCancelled) -> None: ...
    def model_news(self, gpu: int, news: ModelNews) -> None: ...
    def pong(self, gpu: int, news: Pong) -> None: ...


@dataclass
class _WorkerEntry:
    """A worker entry is what the fleet knows of one GPU's worker."""

    spec: WorkerSpec
    ready: bool = False
    loading: set[int] = field(default_factory=set)
    started: Time = 0
    pause: Time = 0
    unsent: deque[InFlightBatch] = field(default_factory=deque)  # inputs still being made
    sent: deque[InFlightBatch] = field(default_factory=deque)
    oldest: int = -1  # the batch that it held at the last look, and for how long by then
    held: Time = 0


class Fleet:
    """A fleet has one worker for each GPU; *later* calls back after that many nanoseconds."""

    def __init__(
        self,
        specs: Sequence[WorkerSpec],
        controller: FleetController,
        clock: Callable[[], Time],
        later: Callable[[Time, Callable[[], None]], object],
    ) -> None:
        self._entries = [_WorkerEntry(spec) for spec in specs]
        self._controller, self._clock, self._later = controller, clock, later
        self.workers: Workers | None = None  # given once it exists: the two know each other
        self.models: dict[int, Mapping[str, ModelFiles]] = {}  # what every worker should have, by its kind
        self.restarts = 0
        self.last_death = "none of them died"
        self.closing = False
        self._looked = 0  # 0: not yet
        self._late, self._late_at = 0, 0  # how late the latest look came, and when that was
        self.oldest: Oldest = self._oldest_sent

    def start(self, workers: Workers) -> None:
        self.workers = workers
        for entry in self._entries:
            self._start(entry)

    def ready(self) -> list[int]:
        return [entry.spec.worker for entry in self._entries if entry.ready]

    def late(self) -> list[tuple[int, list[int], Time]]:
        """Return the workers that are not ready: which models each has to load, and since when it runs."""
        late = [entry for entry in self._entries if not entry.ready]
        return [(entry.spec.worker, sorted(entry.loading), entry.started) for entry in late]

    def idle(self) -> list[int]:
        """Return the workers that are ready and run no batch."""
        ready = self.ready()
        return [worker for worker in ready if self.oldest(worker) is None]

    # orders

    def launch(self, flight: InFlightBatch) -> None:
        self._entries[flight.gpu].unsent.append(flight)
        self.pump(flight.gpu)

    def pump(self, gpu: int) -> None:
        """Send what can be sent; batches of a GPU never overtake each other."""
        entry = self._entries[gpu]
        while entry.unsent and self._controller.inputs_ready(entry.unsent[0]):
            self._send(entry, entry.unsent.popleft())

    def pump_all(self) -> None:
        for gpu in range(len(self._entries)):
            self.pump(gpu)

    def drop_unsent(self) -> None:
        """Forget batches that no worker knows of; their requests have ended."""
        for entry in self._entries:
            entry.unsent.clear()

    def cancel(self, flight: InFlightBatch, recovery: Time) -> None:
        flight.cancelled = True
        unsent = self._entries[flight.gpu].unsent
        if flight in unsent:  # its worker does not know of it
            unsent.remove(flight)
            now = self._clock()
            news = BatchCancelled(flight.tag, now, now)
            self._later(recovery, lambda: self._controller.returned(flight, news))
        else:
            self._order(flight.gpu, messages.CancelBatch(flight.tag, recovery))

    def load(self, model: int, files: Mapping[str, ModelFiles]) -> None:
        self.models[model] = files
        for entry in self._entries:
            if entry.ready:
                self._load(entry, model)

    def unload(self, model: int) -> None:
        del self.models[model]
        for entry in self._entries:
            if entry.ready:
                self._order(entry.spec.worker, messages.UnloadModel(model))

    def check_for_stuck(self) -> None:
        """Kill workers that were over their limit at the last look already.

        News that lay in the sockets while the frontend was stopped or starved is heard between two looks. A
        look that comes late counts no more than one that does not.
        """
        passed = self._look()
        for entry in self._entries:
            tag, limit = self.oldest(entry.spec.worker) or _NO_BATCH
            if tag != entry.oldest:
                entry.oldest, entry.held = tag, 0
            elif entry.held > self._late + (limit if self._may_go_on(entry) else STOPPED_LIMIT):
                reason = f"was stuck: it held a batch for {entry.held / SECOND:.1f} s"
                self._workers.kill(entry.spec.worker, reason)
            entry.held += passed

    def _may_go_on(self, entry: _WorkerEntry) -> bool:
        return entry.held <= STOPPED_LIMIT or not self._workers.is_stopped(entry.spec.worker)

    def _oldest_sent(self, worker: int) -> tuple[int, Time] | None:
        sent = self._entries[worker].sent
        return (sent[0].tag, sent[0].limit) if sent else None

    def _look(self) -> Time:
        """Return how much of the time since the last look counts; remember how late this one comes."""
        now = self._clock()
        since = now - self._looked if self._looked else LOOK_EVERY
        self._looked = now
        late = max(0, since - LOOK_EVERY)
        if late >= self._late or now - self._late_at > LATE_FOR:
            self._late, self._late_at = late, now
        return min(since, LOOK_EVERY)

    # news

    def heard(self, worker: int, news: messages.News) -> None:
        entry = self._entries[worker]
        match news:
            case BatchDone(run) | BatchBroken(run) | BatchCancelled(run):
                if (flight := self._take(entry, run)) is not None:
                    self._controller.returned(flight, news)
            case messages.WorkerUp():
                entry.loading = set(self.models)
                for model in self.models:
                    self._load(entry, model)
                self._maybe_ready(entry)
            case messages.ModelComplete():
                self._controller.model_news(worker, news)
            case messages.ModelLoaded() | messages.ModelRefused() | messages.ModelUnloaded():
                entry.loading.discard(news.model)
                self._controller.model_news(worker, news)
                self._maybe_ready(entry)
            case Pong():
                self._controller.pong(worker, news)

    def died(self, worker: int, reason: str) -> None:
        entry = self._entries[worker]
        flights = [*entry.sent, *entry.unsent]
        entry.sent.clear()
        entry.unsent.clear()
        entry.ready = False
        for flight in flights:
            flight.lost = reason
        self._controller.worker_lost(worker, flights, reason)
        if not self.closing:
            self._restart_later(entry, reason)

    # helpers

    @property
    def _workers(self) -> Workers:
        assert self.workers is not None, "start the fleet first"
        return self.workers

    def _order(self, worker: int, order: messages.Order) -> None:
        self._workers.send(worker, order)

    def _start(self, entry: _WorkerEntry) -> None:
        if not self.closing:
            entry.started = self._clock()
            self._workers.start(entry.spec)

    def _restart_later(self, entry: _WorkerEntry, reason: str) -> None:
        lived = self._clock() - entry.started
        doubled = min(2 * entry.pause or FIRST_PAUSE, LONGEST_PAUSE)
        pause = FIRST_PAUSE if lived > GOOD_LIFE else doubled
        entry.pause = min(max(pause, self._late), LONGEST_PAUSE)
        self.restarts += 1
        self.last_death = f"worker {entry.spec.worker} {reason}"
        told = {"worker": entry.spec.worker, "reason": reason, "pause_s": entry.pause / SECOND}
        log.warning("worker %(worker)d %(reason)s; it starts again in %(pause_s).1f s", told, extra=told)
        self._later(entry.pause, lambda: self._start(entry))

    def _load(self, entry: _WorkerEntry, model: int) -> None:
        files = self.models[model][entry.spec.place.kind]
        order = messages.LoadModel(
            model, files_to(files), powers_to(files.max_batch)
        )  # sizes to warm up with
        self._order(entry.spec.worker, order)

    def _maybe_ready(self, entry: _WorkerEntry) -> None:
        if not entry.ready and not entry.loading:
            entry.ready = True
            self._controller.worker_ready(entry.spec.worker)

    def _send(self, entry: _WorkerEntry, flight: InFlightBatch) -> None:
        entry.sent.append(flight)
        self._order(flight.gpu, self._controller.order(flight))

    def _take(self, entry: _WorkerEntry, tag: int) -> InFlightBatch | None:
        if not entry.sent or entry.sent[0].tag != tag:
            return None
        return entry.sent.popleft()
