"""The workers: started, given their models and batches, missed when they die, started again.

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

from astrarium.core.units import MILLISECOND, SECOND, Time
from astrarium.server.control.tickets import Flight
from astrarium.serving.live.backends.contract import ModelFiles
from astrarium.serving.live.messages import (
    BatchBroken,
    BatchCancelled,
    BatchDone,
    CancelBatch,
    LoadModel,
    Member,
    ModelLoaded,
    ModelRefused,
    ModelUnloaded,
    News,
    Pong,
    RunBatch,
    UnloadModel,
    WorkerUp,
)
from astrarium.serving.live.worker import files_to
from astrarium.serving.live.workers import Workers, WorkerSpec

FIRST_PAUSE, LONGEST_PAUSE = 100 * MILLISECOND, 10 * SECOND
GOOD_LIFE = 30 * SECOND  # after this a death counts as the first
LOOK_EVERY = 100 * MILLISECOND  # between two calls of `check_for_stuck`, as planned
LATE_FOR = 30 * SECOND  # how long a late look is remembered
log = logging.getLogger("astrarium.fleet")


class Chief(Protocol):
    """Who the fleet reports to."""

    def inputs_ready(self, flight: Flight) -> bool: ...
    def members(self, flight: Flight) -> list[Member]: ...
    def worker_ready(self, gpu: int) -> None: ...
    def worker_lost(self, gpu: int, flights: Sequence[Flight], reason: str) -> None: ...
    def landed(self, flight: Flight, news: BatchDone | BatchBroken | BatchCancelled) -> None: ...
    def model_news(self, gpu: int, news: ModelLoaded | ModelRefused | ModelUnloaded) -> None: ...
    def pong(self, gpu: int, news: Pong) -> None: ...


@dataclass
class _Post:
    """One GPU's worker as the fleet knows it."""

    spec: WorkerSpec
    ready: bool = False
    loading: set[int] = field(default_factory=set)
    started: Time = 0
    pause: Time = 0
    unsent: deque[Flight] = field(default_factory=deque)  # inputs still being made
    sent: deque[Flight] = field(default_factory=deque)
    held: Time = 0  # how long the first of `sent` has been there, by the looks since


class Fleet:
    """*later* calls back after that many nanoseconds."""

    def __init__(
        self,
        specs: Sequence[WorkerSpec],
        chief: Chief,
        clock: Callable[[], Time],
        later: Callable[[Time, Callable[[], None]], object],
    ) -> None:
        self._posts = [_Post(spec) for spec in specs]
        self._chief, self._clock, self._later = chief, clock, later
        self.workers: Workers | None = None  # given once it exists: the two know each other
        self.models: dict[int, Mapping[str, ModelFiles]] = {}  # what every worker should have, by its kind
        self.restarts = 0
        self.last_death = "none of them died"
        self.closing = False
        self._looked = 0  # 0: not yet
        self._late, self._late_at = 0, 0  # how late the latest look came, and when that was

    def start(self, workers: Workers) -> None:
        self.workers = workers
        for post in self._posts:
            self._start(post)

    def ready(self) -> list[int]:
        return [post.spec.worker for post in self._posts if post.ready]

    def late(self) -> list[tuple[int, list[int], Time]]:
        """Workers that are not ready: the models that each still has to load, and since when it runs."""
        late = [post for post in self._posts if not post.ready]
        return [(post.spec.worker, sorted(post.loading), post.started) for post in late]

    def idle(self) -> list[int]:
        """Workers that have nothing to do but to answer."""
        return [post.spec.worker for post in self._posts if post.ready and not post.sent]

    # orders

    def launch(self, flight: Flight) -> None:
        self._posts[flight.gpu].unsent.append(flight)
        self.pump(flight.gpu)

    def pump(self, gpu: int) -> None:
        """Send what can be sent; batches of a GPU never overtake each other."""
        post = self._posts[gpu]
        while post.unsent and self._chief.inputs_ready(post.unsent[0]):
            self._send(post, post.unsent.popleft())

    def pump_all(self) -> None:
        for gpu in range(len(self._posts)):
            self.pump(gpu)

    def cancel(self, flight: Flight, recovery: Time) -> None:
        flight.cancelled = True
        unsent = self._posts[flight.gpu].unsent
        if flight in unsent:  # its worker does not know of it
            unsent.remove(flight)
            now = self._clock()
            news = BatchCancelled(flight.tag, now, now)
            self._later(recovery, lambda: self._chief.landed(flight, news))
        else:
            self._order(flight.gpu, CancelBatch(flight.tag, recovery))

    def load(self, model: int, files: Mapping[str, ModelFiles]) -> None:
        self.models[model] = files
        for post in self._posts:
            if post.ready:
                self._load(post, model)

    def unload(self, model: int) -> None:
        del self.models[model]
        for post in self._posts:
            if post.ready:
                self._order(post.spec.worker, UnloadModel(model))

    def check_for_stuck(self) -> None:
        """Kill workers that were over their limit at the last look already.

        News that lay in the sockets while the frontend was stopped or starved is heard between two looks. A
        look that comes late counts no more than one that does not.
        """
        passed = self._look()
        for post in self._posts:
            if post.sent and post.held > post.sent[0].limit + self._late:
                reason = f"was stuck: it held a batch for {post.held / SECOND:.1f} s"
                self._workers.kill(post.spec.worker, reason)
            post.held += passed

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

    def hear(self) -> None:
        self._workers.hear()

    def heard(self, worker: int, news: News) -> None:
        post = self._posts[worker]
        match news:
            case BatchDone(run) | BatchBroken(run) | BatchCancelled(run):
                if (flight := self._take(post, run)) is not None:
                    self._chief.landed(flight, news)
            case WorkerUp():
                post.loading = set(self.models)
                for model in self.models:
                    self._load(post, model)
                self._maybe_ready(post)
            case ModelLoaded(model) | ModelRefused(model) | ModelUnloaded(model):
                post.loading.discard(model)
                self._chief.model_news(worker, news)
                self._maybe_ready(post)
            case Pong():
                self._chief.pong(worker, news)

    def died(self, worker: int, reason: str) -> None:
        post = self._posts[worker]
        flights = [*post.sent, *post.unsent]
        post.sent.clear()
        post.unsent.clear()
        post.ready = False
        for flight in flights:
            flight.lost = reason
        self._chief.worker_lost(worker, flights, reason)
        if not self.closing:
            self._restart_later(post, reason)

    # helpers

    @property
    def _workers(self) -> Workers:
        assert self.workers is not None, "start the fleet first"
        return self.workers

    def _order(self, worker: int, order: RunBatch | CancelBatch | LoadModel | UnloadModel) -> None:
        self._workers.send(worker, order)

    def _start(self, post: _Post) -> None:
        if not self.closing:
            post.started = self._clock()
            self._workers.start(post.spec)

    def _restart_later(self, post: _Post, reason: str) -> None:
        lived = self._clock() - post.started
        doubled = min(2 * post.pause or FIRST_PAUSE, LONGEST_PAUSE)
        pause = FIRST_PAUSE if lived > GOOD_LIFE else doubled
        post.pause = min(max(pause, self._late), LONGEST_PAUSE)
        self.restarts += 1
        self.last_death = f"worker {post.spec.worker} {reason}"
        told = {"worker": post.spec.worker, "reason": reason, "pause_s": post.pause / SECOND}
        log.warning("worker %(worker)d %(reason)s; it starts again in %(pause_s).1f s", told, extra=told)
        self._later(post.pause, lambda: self._start(post))

    def _load(self, post: _Post, model: int) -> None:
        files = self.models[model][post.spec.place.kind]
        self._order(post.spec.worker, LoadModel(model, files_to(files), _warm_sizes(files.max_batch)))

    def _maybe_ready(self, post: _Post) -> None:
        if not post.ready and not post.loading:
            post.ready = True
            self._chief.worker_ready(post.spec.worker)

    def _send(self, post: _Post, flight: Flight) -> None:
        flight.sent = self._clock()
        if not post.sent:
            post.held = 0
        post.sent.append(flight)
        members = self._chief.members(flight)
        self._order(flight.gpu, RunBatch(flight.tag, flight.model, members, flight.start))

    def _take(self, post: _Post, tag: int) -> Flight | None:
        if not post.sent or post.sent[0].tag != tag:
            return None
        post.held = 0
        return post.sent.popleft()


def _warm_sizes(largest: int) -> list[int]:
    """Powers of two, and the largest."""
    return [*(1 << power for power in range((largest - 1).bit_length())), largest]
