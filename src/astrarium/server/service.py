"""The service is a served scenario: what the protocols call, from the first worker to the last answer."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Callable
from itertools import count
from time import monotonic_ns, thread_time_ns
from typing import TYPE_CHECKING, Any

from astrarium.core.optional import extension
from astrarium.core.quantities import SECOND, Time
from astrarium.server.client_errors import ClientErrors
from astrarium.server.contract import HeldInput, InferAnswer, InferCall, ModelCard, Refused
from astrarium.server.control.calls.handler import CallHandler
from astrarium.server.control.calls.open_calls import OpenCalls
from astrarium.server.control.calls.preprocessing import Preprocessor
from astrarium.server.control.calls.tensor_store import TensorStore
from astrarium.server.control.coordinator import THINKS_TOO_LONG, Coordinator
from astrarium.server.control.health.calibration import Calibration
from astrarium.server.control.health.failure_watch import FailureWatch
from astrarium.server.control.health.readiness import Readiness
from astrarium.server.control.plan import ServingPlan
from astrarium.server.control.replanning import Replanner
from astrarium.server.control.repository import Entry, Repository
from astrarium.server.control.startup import until_workers_are_up
from astrarium.server.control.texts.text_queue import TextQueue
from astrarium.server.control.texts.tokenizer_threads import library_threads
from astrarium.server.control.workers.fleet import Fleet
from astrarium.server.control.workers.hearing import HearingScheduler
from astrarium.server.control.workers.isolation import Isolation
from astrarium.server.control.workers.stuck_workers import LOOK_EVERY
from astrarium.server.metrics import Metrics
from astrarium.server.path_meter import PathMeter, PathThreads, PathUse
from astrarium.server.polling import until
from astrarium.server.protocol.networks import NativeNetwork, Networks
from astrarium.server.recording import Recording
from astrarium.server.service_metrics import ServiceMetrics
from astrarium.server.statistics import StatisticsOfModel
from astrarium.server.timelines import Timelines
from astrarium.serving.live.garbage import GarbageKeeper
from astrarium.serving.live.messages import Ping
from astrarium.serving.live.shared_memory import SharedMemory
from astrarium.serving.live.workers import Listener, NativeEars, Workers

if TYPE_CHECKING:
    from astrarium._front import Exchange

SYNC_EVERY = 5  # looks after workers: accounts are synchronized too where somebody reads them
log = logging.getLogger("astrarium.service")
NewWorkers = Callable[[SharedMemory, Listener, NativeEars], Workers]


class LiveService:
    """A live service is made and used inside one event loop: `start`, serve, `drain`, `stop`."""

    def __init__(
        self,
        plan: ServingPlan,
        new_workers: NewWorkers,
        recording: Recording | None = None,
        clock: Callable[[], Time] = monotonic_ns,
    ) -> None:
        self.plan = plan
        self.clock = clock
        front: Any = extension("_front")
        scheduling: Any = extension("_scheduler")
        memory = SharedMemory.create(plan.memory)
        origins = 2 * plan.threads + 1  # HTTP's threads, those of gRPC, and Python
        self.exchange: Exchange = front.Exchange(memory.view, len(plan.models), plan.queue, origins)
        self.exchange.regions.allow(plan.shared_memory, plan.tells_users_apart)
        self.networks = Networks(self.exchange)
        tensor_store = TensorStore(memory, self.exchange.arena)
        scheduler = scheduling.Scheduler(self.exchange, len(plan.workers))
        open_calls = OpenCalls(scheduler, tensor_store, lambda ticket: self.calls.ticket_ended(ticket))
        recorder = None if recording is None else recording.section
        self.coordinator = Coordinator(plan, scheduler, open_calls, clock, recorder)
        scheduler.start()
        self.fleet = self.coordinator.fleet = Fleet(plan.workers, self.coordinator, clock, _later)
        self.repository = self.coordinator.repository = Repository(plan.models, self.fleet)
        self.repository.changed = self.networks.look
        self.isolation = Isolation(self.repository, self.fleet, self.coordinator, clock, self.networks.look)
        self.workers = new_workers(memory, self.fleet, HearingScheduler(scheduler, self.coordinator.collect))
        self._calibration = self.coordinator.calibration = Calibration(self._ping, clock)
        self._preprocessor = Preprocessor(tensor_store, open_calls.inputs_made)
        self._texts = TextQueue(
            self.exchange.texts, tensor_store, open_calls.inputs_made, clock, self._needed
        )
        self._timelines = Timelines()
        self.replanner = Replanner(plan, self.coordinator, self.repository, self._calibration, clock)
        failures = FailureWatch(self.coordinator.accounts.models, clock())
        self.calls = CallHandler(
            self.coordinator,
            self.repository,
            self._preprocessor,
            self._texts,
            self._timelines,
            clock,
            self._closed,
            failures,
        )
        self.readiness = Readiness(
            self.coordinator.accounts,
            self.repository,
            self.calls,
            failures,
            self.replanner,
            clock,
            self.networks.look,
        )
        self.path = PathMeter(self._path_threads, self._path_use)
        self.garbage = GarbageKeeper()
        self.client_errors = ClientErrors()
        self.long_way: Counter[str] = Counter()  # calls that did not go the short way, by reason
        sources = ServiceMetrics(
            plan,
            self.coordinator,
            self.repository,
            self.replanner,
            self.fleet,
            self.workers,
            tensor_store,
            self.networks,
            self.path,
            self.garbage,
            self.client_errors,
            self.long_way,
            recording,
        )
        self._metrics = Metrics(self.coordinator.accounts, sources, clock)
        self._accepted = 0  # calls, when the watch last looked
        self._watch: asyncio.Task[None] | None = None
        self.draining = False

    async def start(self) -> None:
        """Start; return once every worker has its models. InputError names a model that cannot be loaded."""
        self._load_preprocessing()
        self.repository.start()
        self.fleet.start(self.workers)
        await until_workers_are_up(self.plan, self.coordinator, self.repository, self.fleet, self.clock)
        for entry in self.repository.entries:
            if entry.state == "READY":  # of others nobody knows the inputs for certain
                self._texts.fit(entry.plan.index, entry.tensors.inputs)
        await self.replanner.begin()
        self._watch = asyncio.get_running_loop().create_task(self._look_after())

    def _load_preprocessing(self) -> None:
        for model in self.plan.models:
            if isinstance(model.preprocess, str):
                self._preprocessor.load(model.name, model.preprocess)
            elif model.preprocess is not None:
                self._texts.add(model.index, model.preprocess, f"models.{model.name}.preprocess")
        self._texts.start()

    async def drain(self, grace: float) -> None:
        """Take no more calls and end those that were taken, for at most *grace* seconds."""
        self.draining = True
        self.coordinator.takes_calls(False)
        await until(lambda: not self.coordinator.admission.open(), self.clock, grace)

    async def stop(self, grace: float = 2.0) -> None:
        """End what is still open, with a reason, and stop the workers within *grace* seconds."""
        self.draining = self.fleet.closing = True
        for task in (self._watch, *self.readiness.trials):
            if task is not None:
                task.cancel()
        self.workers.hush()
        await asyncio.to_thread(self._texts.close)
        if self.coordinator.began:
            self.coordinator.close()
        await self.workers.stop(grace)
        self._preprocessor.close()

    @property
    def ready(self) -> bool:
        """Whether calls are taken and decided on, a worker is up, and not every model fails everybody.

        One model that does is not enough: it says so of itself, and the others go on.
        """
        loaded = [entry for entry in self.repository.entries if entry.state == "READY"]
        answering = [entry for entry in loaded if not entry.refusing and not entry.failing]
        decides = self.coordinator.thinking_for() < THINKS_TOO_LONG
        return (
            not self._closed()
            and decides
            and bool(self.coordinator.present)
            and bool(answering or not loaded)
        )

    def _closed(self) -> str:
        """Return why no call is taken now; empty where they are."""
        if self.draining:
            return "the server is draining"
        return "" if self.coordinator.expects_worker and self.coordinator.began else "no worker is up"

    async def infer(self, call: InferCall) -> InferAnswer:
        return await self.calls.infer(call)

    def cards(self) -> list[ModelCard]:
        return [entry.card() for entry in self.repository.entries]

    def card(self, model: str) -> ModelCard:
        return self.repository.card(model)

    async def load(self, model: str) -> None:
        entry = self.repository.find(model)
        async with entry.turn:
            index = entry.plan.index
            self.coordinator.release(index)
            if entry.state != "READY" and not self.coordinator.admission.open_of(index):
                self.fleet.forget_tensors(index)
            await self.repository.load(entry)
            await self._texts.renew(index, entry.tensors.inputs)
            self.readiness.loaded_anew(entry)
            self.networks.look()

    async def unload(self, model: str) -> None:
        entry = self.repository.find(model)
        async with entry.turn:
            if entry.state != "UNAVAILABLE" or entry.apart or entry.plan.index in self.fleet.models:
                await self._finish(entry)
                await self.repository.unload(entry)
                self.isolation.forgive(entry)

    async def _finish(self, entry: Entry) -> None:
        """Answer the accepted calls of a model and take no new ones; a waiter that gives up has it back."""
        entry.state = "UNLOADING"
        entry.reason = "it is being unloaded"
        self.networks.look()
        try:
            await until(lambda: not self.coordinator.admission.open_of(entry.plan.index), self.clock)
        except asyncio.CancelledError:
            entry.state = "READY"
            entry.reason = ""
            self.networks.look()
            raise

    def quarantine(self, model: str) -> list[HeldInput]:
        index = self.repository.find(model).plan.index
        now = self.clock()
        held = [one for one in self.coordinator.quarantined() if one.model == index]
        return [
            HeldInput(
                f"{one.digest:016x}", one.reason, (one.until - now) / SECOND, (now - one.since) / SECOND
            )
            for one in held
        ]

    def release(self, model: str) -> int:
        return self.coordinator.release(self.repository.find(model).plan.index)

    def listen_to(self, network: NativeNetwork) -> None:
        """Bring what network threads count into the accounts, and their calls on the timeline."""
        self.coordinator.accounts.tally = self.exchange.tally
        self.networks.add(network)

    def turned_away(self, model: str, refused: Refused) -> None:
        self.calls.turned_away(self.repository.find(model), refused)

    def went_long_way(self, reason: str) -> None:
        self.long_way[reason] += 1

    def statistics(self, model: str) -> StatisticsOfModel:
        self.coordinator.sync()
        return self.coordinator.accounts.models[self.repository.find(model).plan.index].statistics()

    def metrics(self) -> bytes:
        self.coordinator.sync()
        return self._metrics.text()

    def timeline(self, last: int) -> bytes:
        self.networks.note_last_calls(self._timelines, [model.name for model in self.plan.models])
        return self._timelines.trace(last)

    def _path_use(self) -> PathUse:
        """Return what the path has done, in the event loop's thread and by accounts that are in sync."""
        models = self.coordinator.accounts.models
        return PathUse(
            sum(accounts.accepted for accounts in models),
            sum(accounts.success.count for accounts in models),
            self.networks.cpu_time(),
            self.coordinator.cpu_time,
            thread_time_ns(),
            self._texts.cpu_time(),
            library_threads.cpu_time(),
        )

    def _path_threads(self) -> PathThreads:
        network = min(self.plan.threads, len(os.sched_getaffinity(0)))
        return PathThreads(network, self._texts.threads, len(library_threads.numbers))

    def _needed(self, model: int) -> Time:
        """Return how long the shortest call of a model takes once it has its inputs."""
        return self.coordinator.admission.cost(model).needed

    def _ping(self, worker: int) -> None:
        self.workers.send(worker, Ping(self.clock()))

    async def _look_after(self) -> None:
        for looks in count():
            await asyncio.sleep(LOOK_EVERY / SECOND)
            try:
                if looks % SYNC_EVERY == 0:
                    self.coordinator.sync()
                    self.path.look(self.clock())
                self.fleet.check_for_stuck()
                self._calibration.ping_one(self.fleet.idle())
                self.replanner.follow_drift()
                self._collect_garbage()
                self.readiness.look_for_refusals()
                self.readiness.look_for_failures()
                self.client_errors.no_descriptor(self.networks.turned_away())
            except Exception:  # looking after things must not end with one of them
                log.exception("looking after workers and plans failed")

    def _collect_garbage(self) -> None:
        """Collect garbage in an idle moment: nothing is open, and nothing came since the last look."""
        before = self._accepted
        self._accepted = sum(accounts.accepted for accounts in self.coordinator.accounts.models)
        if self._accepted == before and not self.coordinator.admission.open():
            self.garbage.idle_moment()
        else:
            self.garbage.busy_moment()


def _later(after: Time, call: Callable[[], None]) -> object:
    return asyncio.get_running_loop().call_later(after / SECOND, call)
