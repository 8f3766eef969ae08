"""The fleet starts the workers, gives them models, and starts those again that die.

A GPU has a worker that its models share. A model may be set apart: it then has a worker of its own on each
GPU, which nobody else is lost with.

A worker that was broken by a model is started anew at once, if it has lived a second: it is not at fault. Any
other one is started after a pause that doubles from death to death and is forgotten once the worker has lived
a while. A worker that holds a batch far longer than it should is taken for stuck and killed. A model that
ends workers while they load it is not loaded any more.

Only time in which the frontend listened counts against a worker. How late the frontend itself has lately been
is what this machine does to any process now: workers are given as much more time, both before they are taken
for stuck and before they are started again.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from astrarium.core.quantities import FOREVER, MILLISECOND, SECOND, Time, rounded_duration
from astrarium.server.control.workers.blame import Blame, Loss
from astrarium.serving.live import messages
from astrarium.serving.live.backends.contract import ModelFiles, powers_to
from astrarium.serving.live.messages import ModelNews, Pong, plain_files
from astrarium.serving.live.process import Death
from astrarium.serving.live.workers import Workers, WorkerSpec

FIRST_PAUSE = 100 * MILLISECOND
LONGEST_PAUSE = 10 * SECOND
GOOD_LIFE = 30 * SECOND  # after this a death counts as the first
GOOD_LIFE_OF_BLAMELESS = SECOND  # after this a worker that a model has broken has no pause at all
# times what the last one took: then a load is stuck
SHORTEST_LOAD_LIMIT = 10 * SECOND
LOAD_TOO_LONG = 10
LOADS = 2  # so often a model may end a worker that loads it
LOOK_EVERY = 100 * MILLISECOND  # between two calls of `check_for_stuck`, as planned
STOPPED_LIMIT = 300 * MILLISECOND  # for a batch whose worker was stopped: it will not go on by itself
LATE_FOR = 30 * SECOND  # how long a late look is remembered
_NO_BATCH = -1, FOREVER
log = logging.getLogger("astrarium.fleet")


class FleetController(Protocol):
    """The fleet reports to its controller, which knows what batches workers have."""

    def worker_ready(self, worker: int) -> None: ...
    def worker_lost(self, worker: int, loss: Loss) -> Blame | None: ...
    def oldest(self, worker: int) -> tuple[int, Time] | None:
        """Return the batch that a worker has held longest, and how long it may."""

    def hears_workers(self) -> bool:
        """Return whether what workers say of their batches is heard now: not while a policy thinks."""

    def model_news(self, gpu: int, news: ModelNews) -> None: ...
    def pong(self, gpu: int, news: Pong) -> None: ...


@dataclass
class _WorkerEntry:
    """An entry outlives the worker's process, and goes when its model is no longer set apart."""

    spec: WorkerSpec
    only: int = -1  # the one model that it has; -1: all that are not set apart
    ready: bool = False
    loading: set[int] = field(default_factory=set)
    begun: int = -1  # the model that it is loading just now
    loads_for: Time = 0  # so long
    fatal_loads: Counter[int] = field(default_factory=Counter)  # by model: loads that ended the process
    started: Time = 0
    took: Time = 0  # from its last start until it was ready; 0: it never was
    pause: Time = 0
    last_words: messages.WorkerBroken | None = None
    oldest: int = -1  # the batch that it held at the last look, and for how long by then
    held: Time = 0


class Fleet:
    """A fleet has a worker for each GPU, and more for models that are set apart.

    *later* calls back after that many nanoseconds.
    """

    def __init__(
        self,
        specs: Sequence[WorkerSpec],
        controller: FleetController,
        clock: Callable[[], Time],
        later: Callable[[Time, Callable[[], None]], object],
    ) -> None:
        self._entries = {spec.worker: _WorkerEntry(spec) for spec in specs}
        self._specs = specs  # of the shared workers
        self._controller = controller
        self._clock = clock
        self._later = later
        self.workers: Workers | None = None  # given once it exists: the two know each other
        self.models: dict[int, Mapping[str, ModelFiles]] = {}  # what every worker should have, by its kind
        self.restarts = 0
        self.last_death = "none of them died"
        self.blamed: Callable[[Blame, str], None] = lambda blame, reason: None
        self.closing = False
        self._load_took: dict[int, Time] = {}  # by model, the last time that it could be loaded
        self._looked = 0  # 0: not yet
        # how late the latest look came, and when that was
        self._late = 0
        self._late_at = 0

    def start(self, workers: Workers) -> None:
        self.workers = workers
        for entry in self._entries.values():
            self._start(entry)

    def ready(self) -> list[int]:
        return [entry.spec.worker for entry in self._entries.values() if entry.ready]

    def holders(self, model: int) -> list[int]:
        """Return the workers that are ready and have a model, or should have it."""
        return [
            entry.spec.worker for entry in self._entries.values() if entry.ready and self._has(entry, model)
        ]

    def back_at(self) -> Time:
        """Return when a shared worker can be expected to be ready; 0 where nobody knows."""
        shared = [self._entries[spec.worker] for spec in self._specs]
        return min(
            (entry.started + entry.took for entry in shared if entry.took and not entry.ready), default=0
        )

    def late(self) -> list[tuple[int, list[int], Time]]:
        """Return the workers that are not ready: which models each has to load, and since when it runs."""
        late = [entry for entry in self._entries.values() if not entry.ready]
        return [(entry.spec.worker, sorted(entry.loading), entry.started) for entry in late]

    def idle(self) -> list[int]:
        """Return the workers that are ready and run no batch."""
        ready = self.ready()
        return [worker for worker in ready if self._controller.oldest(worker) is None]

    # orders

    def load(self, model: int, files: Mapping[str, ModelFiles]) -> None:
        self.models[model] = files
        for worker in self.holders(model):
            self._load(self._entries[worker], model)

    def forgive_loads(self, model: int) -> None:
        """Let workers load a model again that has ended some of them."""
        for entry in self._entries.values():
            entry.fatal_loads.pop(model, None)

    def unload(self, model: int) -> None:
        """Unload a model; one that was set apart keeps its workers until `set_together`."""
        for worker in self.holders(model):
            self._order(worker, messages.UnloadModel(model))
        self.models.pop(model, None)
        for entry in list(self._entries.values()):  # nobody waits for a load that nobody wants
            if model in entry.loading:
                entry.loading.discard(model)
                self._maybe_ready(entry)

    # models that are set apart

    def set_apart(self, model: int) -> list[int]:
        """Give a model a worker of its own on each GPU, in the order of GPUs; return their numbers. Shared
        workers keep it until `leave_shared`."""
        first = max(self._entries) + 1
        for number, spec in enumerate(self._specs, first):
            entry = self._entries[number] = _WorkerEntry(WorkerSpec(number, spec.place), model)
            self._start(entry)
        return list(range(first, first + len(self._specs)))

    def leave_shared(self, model: int) -> None:
        """Have the shared workers unload a model that was set apart, once nobody sends them batches of it."""
        shared = [self._entries[spec.worker] for spec in self._specs]
        for entry in shared:
            if entry.ready and entry.fatal_loads[model] < LOADS:
                self._order(entry.spec.worker, messages.UnloadModel(model, moves=True))

    def set_together(self, model: int) -> None:
        """Let the workers of a model that was set apart go."""
        for worker in [number for number, entry in self._entries.items() if entry.only == model]:
            del self._entries[worker]
            self._workers.kill(worker, Death("is no longer needed", by_its_work=False))

    def is_apart(self, model: int) -> bool:
        return any(entry.only == model for entry in self._entries.values())

    def _has(self, entry: _WorkerEntry, model: int) -> bool:
        if entry.fatal_loads[model] >= LOADS:
            return False
        return entry.only == model or (entry.only < 0 and not self.is_apart(model))

    def check_for_stuck(self) -> None:
        """Kill workers that were over their limit at the last look already.

        News that lay in the sockets while the frontend was stopped or starved is heard between two looks. A
        look that comes late counts no more than one that does not, and none while nobody hears workers.
        """
        passed = self._look()
        if not self._controller.hears_workers():
            return
        for entry in self._entries.values():
            tag, limit = self._controller.oldest(entry.spec.worker) or _NO_BATCH
            if tag != entry.oldest:
                entry.oldest = tag
                entry.held = 0
            elif entry.held > self._late + (limit if self._may_go_on(entry) else STOPPED_LIMIT):
                self._kill_stuck(entry)
            if entry.oldest >= 0:  # only time in which it has a batch counts against it
                entry.held += passed
            self._check_load(entry, passed)

    def _check_load(self, entry: _WorkerEntry, passed: Time) -> None:
        """Kill a worker that loads a model for much longer than that took before: others wait for it."""
        if entry.begun < 0:
            return
        entry.loads_for += passed
        took = self._load_took.get(entry.begun)
        if took is None:
            return  # of a first load nobody knows how long it takes: `server.start_limit` is for that
        if entry.loads_for > self._late + max(SHORTEST_LOAD_LIMIT, LOAD_TOO_LONG * took):
            reason = f"was stuck: it loaded a model for {entry.loads_for / SECOND:.1f} s"
            self._workers.kill(entry.spec.worker, Death(reason))

    def _kill_stuck(self, entry: _WorkerEntry) -> None:
        worker = entry.spec.worker
        reason = f"was stuck: it held a batch for {entry.held / SECOND:.1f} s"
        self._workers.kill(worker, Death(reason, by_its_work=not self._workers.is_stopped(worker)))

    def _may_go_on(self, entry: _WorkerEntry) -> bool:
        return entry.held <= STOPPED_LIMIT or not self._workers.is_stopped(entry.spec.worker)

    def _look(self) -> Time:
        """Return how much of the time since the last look counts; remember how late this one comes."""
        now = self._clock()
        since = now - self._looked if self._looked else LOOK_EVERY
        self._looked = now
        late = max(0, since - LOOK_EVERY)
        if late >= self._late or now - self._late_at > LATE_FOR:
            self._late = late
            self._late_at = now
        return min(since, LOOK_EVERY)

    # news

    def heard(self, worker: int, news: messages.News) -> None:
        entry = self._entries.get(worker)
        if entry is None:
            return  # of a worker that was let go
        match news:
            case messages.WorkerUp():
                self._load_all(entry)
            case messages.WorkerBroken():
                entry.last_words = news
            case messages.ModelLoading(model):
                entry.begun = model
                entry.loads_for = 0
            case messages.ModelComplete():
                self._controller.model_news(worker, news)
            case messages.ModelLoaded() | messages.ModelRefused() | messages.ModelUnloaded():
                entry.loading.discard(news.model)
                if isinstance(news, messages.ModelLoaded) and entry.begun == news.model:
                    self._load_took[news.model] = entry.loads_for
                entry.begun = -1 if entry.begun == news.model else entry.begun
                self._controller.model_news(worker, news)
                self._maybe_ready(entry)
            case Pong():
                self._controller.pong(worker, news)

    def died(self, worker: int, death: Death) -> None:
        entry = self._entries.get(worker)
        if entry is None:
            return
        loss = _loss(entry, death)
        loading = entry.begun >= 0 and loss.run < 0 and loss.by_its_work
        broken = loading or (loss.by_its_work and self._controller.oldest(worker) is not None)
        entry.pause = self._pause(entry, broken)
        entry.started = self._clock() + entry.pause  # as planned
        entry.ready = False
        told = loss._replace(by_its_work=False) if loading else loss  # what ran beside a load is not suspect
        blame = self._controller.worker_lost(worker, told)
        if loading:
            blame = self._died_loading(entry, loss)
        entry.begun = -1
        if not self.closing:
            self._restart(entry, loss, blame)

    # helpers

    @property
    def _workers(self) -> Workers:
        assert self.workers is not None, "start the fleet first"
        return self.workers

    def _order(self, worker: int, order: messages.Order) -> None:
        self._workers.send(worker, order)

    def _start(self, entry: _WorkerEntry) -> None:
        if not self.closing and self._entries.get(entry.spec.worker) is entry:
            entry.started = self._clock()
            self._workers.start(entry.spec)

    def _restart(self, entry: _WorkerEntry, loss: Loss, blame: Blame | None) -> None:
        self.restarts += 1
        self._tell_of_death(entry, loss, blame)
        self._later(entry.pause, lambda: self._start(entry))
        if blame:
            self.blamed(blame, loss.reason)

    def _pause(self, entry: _WorkerEntry, broken: bool) -> Time:
        """Return how long not to start a worker that has died; *broken* by what it ran or loaded."""
        lived = self._clock() - entry.started
        if broken:
            return self._late if lived > GOOD_LIFE_OF_BLAMELESS else max(FIRST_PAUSE, self._late)
        doubled = min(max(2 * entry.pause, FIRST_PAUSE), LONGEST_PAUSE)
        pause = FIRST_PAUSE if lived > GOOD_LIFE else doubled
        return min(max(pause, self._late), LONGEST_PAUSE)

    def _tell_of_death(self, entry: _WorkerEntry, loss: Loss, blame: Blame | None) -> None:
        reason = f"{loss.reason}{f' {self._doing(entry, blame)}' if blame else ''}"
        self.last_death = f"worker {entry.spec.worker} {reason}"
        when = f"in {rounded_duration(entry.pause)}" if entry.pause >= 10 * MILLISECOND else "at once"
        pause_s = round(entry.pause / SECOND, 3)
        told = {"worker": entry.spec.worker, "reason": reason, "when": when, "pause_s": pause_s}
        log.warning("worker %(worker)d %(reason)s; it starts again %(when)s", told, extra=told)

    def _doing(self, entry: _WorkerEntry, blame: Blame) -> str:
        """Return what a worker did for a model when it broke."""
        name = self.models[blame.model][entry.spec.place.kind].name if blame.model in self.models else "?"
        if not blame.calls:
            return f"while it loaded model {name}"
        return f"while it ran {blame.calls} call{'s' * (blame.calls > 1)} of model {name}"

    def _died_loading(self, entry: _WorkerEntry, loss: Loss) -> Blame:
        """Blame the model that was being loaded; one that ends workers again and again is refused."""
        model = entry.begun
        entry.fatal_loads[model] += 1
        if entry.fatal_loads[model] >= LOADS:
            error = f"the worker {loss.reason} while it loaded the model, {LOADS} times"
            self._controller.model_news(entry.spec.worker, messages.ModelRefused(model, error))
        return Blame(model, 0)

    def _load_all(self, entry: _WorkerEntry) -> None:
        entry.begun = -1
        entry.last_words = None
        entry.loading = {model for model in self.models if self._has(entry, model)}
        for model in sorted(entry.loading):
            self._load(entry, model)
        self._maybe_ready(entry)

    def _load(self, entry: _WorkerEntry, model: int) -> None:
        files = self.models[model][entry.spec.place.kind]
        order = messages.LoadModel(
            model, plain_files(files), powers_to(files.max_batch)
        )  # sizes to warm up with
        self._order(entry.spec.worker, order)

    def _maybe_ready(self, entry: _WorkerEntry) -> None:
        if not entry.ready and not entry.loading:
            entry.ready, entry.took = True, max(1, self._clock() - entry.started)
            self._controller.worker_ready(entry.spec.worker)


def _loss(entry: _WorkerEntry, death: Death) -> Loss:
    """Return how a worker was lost; its own last words say it best."""
    words = entry.last_words
    entry.last_words = None
    if words is not None:
        return Loss(words.error, True, words.run)
    return Loss(*death)
