"""The fleet starts the workers, gives them models, and starts those again that die.

A GPU has a worker that its models share. A model may be set apart: it then has a worker of its own on each
GPU, which nobody else is lost with.

A worker that was broken by a model is started anew at once, if it has lived a second: it is not at fault. Any
other one is started after a pause that doubles from death to death and is forgotten once the worker has lived
a while. A worker that holds a batch far longer than it should is taken for stuck and killed. A model that
ends workers while they load it is not loaded any more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from astrarium.core.quantities import MILLISECOND, SECOND, Time, rounded_duration
from astrarium.server.control.workers.blame import Blame, Loss
from astrarium.server.control.workers.stuck_workers import Lateness, StuckWorkers
from astrarium.server.control.workers.worker_entry import LOADS, WorkerEntry
from astrarium.serving.live import messages
from astrarium.serving.live.backends.contract import ModelFiles, powers_to
from astrarium.serving.live.messages import ModelNews, Pong, plain_files
from astrarium.serving.live.process import Death
from astrarium.serving.live.workers import Workers, WorkerSpec

log = logging.getLogger("astrarium.fleet")


class FleetController(Protocol):
    """The fleet reports to its controller, which knows what batches workers have."""

    def worker_ready(self, worker: int) -> None: ...
    def worker_lost(self, worker: int, loss: Loss) -> Blame | None: ...
    def oldest(self, worker: int) -> tuple[int, Time] | None:
        """Return the batch that a worker has held longest, and how long it may."""

    def heard_until(self) -> Time:
        """Return until when workers were heard: until now, or until a policy in Python began to think."""

    def thinking_for(self) -> Time: ...

    def model_news(self, gpu: int, news: ModelNews) -> None: ...
    def pong(self, gpu: int, news: Pong) -> None: ...


class LateWorker(NamedTuple):
    """This worker has run *since* then, and is not ready: it still has these *models* to load."""

    worker: int
    models: list[int]
    since: Time


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
        self._entries = {spec.worker: WorkerEntry(spec) for spec in specs}
        self._specs = specs  # of the shared workers
        self._controller = controller
        self._clock = clock
        self._later = later
        self.workers: Workers | None = None  # given once it exists: the two know each other
        self.models: dict[int, Mapping[str, ModelFiles]] = {}  # what every worker should have, by its kind
        self._tensors: dict[tuple[int, str], int] = {}  # fingerprints of what models are served with, by kind
        self.restarts = 0
        self.last_death = "none of them died"
        self.blamed: Callable[[Blame, str], None] = lambda blame, reason: None
        self.closing = False
        self._lateness = Lateness(clock)
        self._stuck = StuckWorkers(self._lateness, controller.oldest, controller.heard_until)

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
        """Return when a shared worker can be expected to be ready; 0 where nobody knows.

        That is later and later where one takes longer than usual: who tells others asks again and again.
        """
        shared = [self._entries[spec.worker] for spec in self._specs]
        starting = [entry for entry in shared if entry.startup_time and not entry.ready]
        now = self._clock()
        return min((entry.expected_at(now) for entry in starting), default=0)

    def late(self) -> list[LateWorker]:
        late = [entry for entry in self._entries.values() if not entry.ready]
        return [LateWorker(entry.spec.worker, sorted(entry.to_load), entry.started) for entry in late]

    def idle(self) -> list[int]:
        """Return the workers that are ready and run no batch; none while nobody hears what they answer."""
        ready = [] if self._controller.thinking_for() else self.ready()
        return [worker for worker in ready if self._controller.oldest(worker) is None]

    def load(self, model: int, files: Mapping[str, ModelFiles]) -> None:
        self.models[model] = files
        for entry in self._up_for(model):
            if not entry.ready:
                entry.to_load.add(model)
            self._load(entry, model)

    def forgive_loads(self, model: int) -> None:
        """Let workers load a model again that has ended some of them."""
        for entry in self._entries.values():
            entry.fatal_loads.pop(model, None)

    def unload(self, model: int) -> None:
        """Unload a model; one that was set apart keeps its workers until `set_together`."""
        for entry in self._up_for(model):
            self._order(entry.spec.worker, messages.UnloadModel(model))
        self.models.pop(model, None)
        self.forget_tensors(model)
        for entry in list(self._entries.values()):  # nobody waits for a load that nobody wants
            if model in entry.to_load:
                entry.to_load.discard(model)
                self._maybe_ready(entry)

    def forget_tensors(self, model: int) -> None:
        """Let a model have other inputs and outputs than before: no call waits that was read for those."""
        for served in [served for served in self._tensors if served[0] == model]:
            del self._tensors[served]

    def set_apart(self, model: int) -> list[int]:
        """Give a model a worker of its own on each GPU, in the order of GPUs; return their numbers.

        Shared workers keep it until `leave_shared`.
        """
        first = max(self._entries) + 1
        for number, spec in enumerate(self._specs, first):
            entry = self._entries[number] = WorkerEntry(WorkerSpec(number, spec.place), model)
            self._start(entry)
        return list(range(first, first + len(self._specs)))

    def leave_shared(self, model: int) -> None:
        """Have the shared workers unload a model that was set apart, once nobody sends them batches of it."""
        shared = [self._entries[spec.worker] for spec in self._specs]
        for entry in shared:
            if entry.ready and entry.may_load(model):
                self._order(entry.spec.worker, messages.UnloadModel(model, moves=True))

    def set_together(self, model: int) -> None:
        """Let the workers of a model that was set apart go."""
        for worker in [number for number, entry in self._entries.items() if entry.only_model == model]:
            del self._entries[worker]
            self._workers.kill(worker, Death("is no longer needed", by_its_work=False))

    def is_apart(self, model: int) -> bool:
        return any(entry.only_model == model for entry in self._entries.values())

    def _has(self, entry: WorkerEntry, model: int) -> bool:
        if not entry.may_load(model):
            return False
        return entry.only_model == model or (entry.only_model < 0 and not self.is_apart(model))

    def _up_for(self, model: int) -> list[WorkerEntry]:
        """Return the workers that hear orders and have a model, are loading it, or should."""
        return [entry for entry in self._entries.values() if entry.up and self._has(entry, model)]

    def check_for_stuck(self) -> None:
        self._stuck.check(self._entries.values(), self._workers)

    def heard(self, worker: int, news: messages.News) -> None:
        entry = self._entries.get(worker)
        if entry is None:
            return  # of a worker that was let go
        match news:
            case messages.WorkerUp():
                entry.up = True
                self._load_all(entry)
            case messages.WorkerBroken():
                entry.broken = news
            case messages.ModelLoading(model):
                entry.loading = model
                entry.loading_for = 0
            case messages.ModelComplete() | messages.BatchesSlow():
                self._controller.model_news(worker, news)
            case messages.ModelLoaded() | messages.ModelRefused() | messages.ModelUnloaded():
                entry.to_load.discard(news.model)
                if isinstance(news, messages.ModelLoaded):
                    self._loaded(entry, news)
                entry.loading = -1 if entry.loading == news.model else entry.loading
                self._controller.model_news(worker, news)
                self._unload_unwanted(entry, news)
                self._maybe_ready(entry)
            case Pong():
                self._controller.pong(worker, news)

    def _loaded(self, entry: WorkerEntry, news: messages.ModelLoaded) -> None:
        if news.model in self.models:
            tensors = messages.fingerprint(news.inputs, news.outputs)
            self._tensors[news.model, entry.spec.place.kind] = tensors
        if entry.loading == news.model:
            self._stuck.load_times[news.model] = entry.loading_for

    def died(self, worker: int, death: Death) -> None:
        entry = self._entries.get(worker)
        if entry is None:
            return
        loss = entry.take_loss(death)
        loading = entry.loading >= 0 and loss.tag < 0 and loss.by_its_work
        by_a_model = loading or (loss.by_its_work and self._controller.oldest(worker) is not None)
        now = self._clock()
        entry.pause = entry.pause_after(now - entry.started, by_a_model, self._lateness.late)
        entry.started = now + entry.pause  # as planned
        entry.is_down()
        unsuspected = loss._replace(by_its_work=False)  # what ran beside a load
        blame = self._controller.worker_lost(worker, unsuspected if loading else loss)
        if loading:
            blame = self._died_loading(entry, loss)
        entry.loading = -1
        if not self.closing:
            self._restart(entry, loss, blame)

    @property
    def _workers(self) -> Workers:
        assert self.workers is not None, "start the fleet first"
        return self.workers

    def _order(self, worker: int, order: messages.Order) -> None:
        self._workers.send(worker, order)

    def _start(self, entry: WorkerEntry) -> None:
        if not self.closing and self._entries.get(entry.spec.worker) is entry:
            entry.started = self._clock()
            self._workers.start(entry.spec)

    def _restart(self, entry: WorkerEntry, loss: Loss, blame: Blame | None) -> None:
        self.restarts += 1
        self._log_death(entry, loss, blame)
        self._later(entry.pause, lambda: self._start(entry))
        if blame:
            self.blamed(blame, loss.reason)

    def _log_death(self, entry: WorkerEntry, loss: Loss, blame: Blame | None) -> None:
        reason = f"{loss.reason}{f' {self._doing(entry, blame)}' if blame else ''}"
        self.last_death = f"worker {entry.spec.worker} {reason}"
        when = f"in {rounded_duration(entry.pause)}" if entry.pause >= 10 * MILLISECOND else "at once"
        pause_s = round(entry.pause / SECOND, 3)
        shown = {"worker": entry.spec.worker, "reason": reason, "when": when, "pause_s": pause_s}
        log.warning("worker %(worker)d %(reason)s; it starts again %(when)s", shown, extra=shown)

    def _doing(self, entry: WorkerEntry, blame: Blame) -> str:
        """Return what a worker did for a model when it broke."""
        name = self.models[blame.model][entry.spec.place.kind].name if blame.model in self.models else "?"
        if not blame.calls:
            return f"while it loaded model {name}"
        return f"while it ran {blame.calls} call{'s' * (blame.calls > 1)} of model {name}"

    def _died_loading(self, entry: WorkerEntry, loss: Loss) -> Blame:
        """Blame the model that was being loaded; one that ends workers again and again is refused."""
        model = entry.loading
        entry.fatal_loads[model] += 1
        if not entry.may_load(model):
            error = f"the worker {loss.reason} while it loaded the model, {LOADS} times"
            self._controller.model_news(entry.spec.worker, messages.ModelRefused(model, error))
        return Blame(model, 0)

    def _load_all(self, entry: WorkerEntry) -> None:
        entry.loading = -1
        entry.broken = None
        entry.to_load = {model for model in self.models if self._has(entry, model)}
        for model in sorted(entry.to_load):
            self._load(entry, model)
        self._maybe_ready(entry)

    def _load(self, entry: WorkerEntry, model: int) -> None:
        kind = entry.spec.place.kind
        files = self.models[model][kind]
        served = self._tensors.get((model, kind), 0)
        order = messages.LoadModel(model, plain_files(files), powers_to(files.max_batch), served)
        self._order(entry.spec.worker, order)

    def _unload_unwanted(self, entry: WorkerEntry, news: messages.News) -> None:
        """Have a model unloaded again that was unloaded while a worker was loading it."""
        if isinstance(news, messages.ModelLoaded) and news.model not in self.models:
            self._order(entry.spec.worker, messages.UnloadModel(news.model))

    def _maybe_ready(self, entry: WorkerEntry) -> None:
        if entry.up and not entry.ready and not entry.to_load:
            entry.ready = True
            entry.startup_time = max(1, self._clock() - entry.started)
            self._controller.worker_ready(entry.spec.worker)
