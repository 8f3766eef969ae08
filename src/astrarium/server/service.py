"""The service is a served scenario: what the protocols call, from the first worker to the last answer."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Protocol, cast

from msgspec.structs import replace

from astrarium.core.errors import InputError
from astrarium.core.optional import extension
from astrarium.core.quantities import MILLISECOND, SECOND, Time, rounded_duration, write_duration
from astrarium.server.client_errors import ClientErrors
from astrarium.server.contract import HeldInput, InferAnswer, InferCall, ModelCard, Refused, Stages
from astrarium.server.control.accounts.model_accounts import ModelAccounts
from astrarium.server.control.calls.handler import CallHandler
from astrarium.server.control.calls.open_calls import OpenCalls
from astrarium.server.control.calls.preprocessing import Preprocessor
from astrarium.server.control.calls.tensor_store import TensorStore
from astrarium.server.control.calls.ticket import KeptGpu
from astrarium.server.control.coordinator import Coordinator
from astrarium.server.control.health.bounds import around, tightest
from astrarium.server.control.health.calibration import Calibration
from astrarium.server.control.health.drift_watch import DriftWatch
from astrarium.server.control.health.failure_watch import FailureWatch
from astrarium.server.control.health.refusal_watch import RefusalWatch
from astrarium.server.control.plan import ServingPlan
from astrarium.server.control.repository import Entry, Repository
from astrarium.server.control.workers.fleet import LOOK_EVERY, Fleet
from astrarium.server.control.workers.hearing import HearingScheduler
from astrarium.server.control.workers.isolation import Isolation
from astrarium.server.metrics import Metrics
from astrarium.server.recording import Recording
from astrarium.server.statistics import StatisticsOfModel
from astrarium.server.timelines import Timelines
from astrarium.serving.contract import Network
from astrarium.serving.live.arena import SharedMemory
from astrarium.serving.live.garbage import GarbageKeeper
from astrarium.serving.live.messages import Ping
from astrarium.serving.live.workers import Listener, NativeEars, Workers

if TYPE_CHECKING:
    from astrarium._front import Exchange

POLL = 0.01
SYNC_EVERY = 5  # looks after workers: accounts are synchronized too where somebody reads them
_DELAYS_CUT = (
    "delays of %(measured_ms).2f ms were measured, and the objective of model %(model)s leaves "
    "%(planned_ms).2f ms for them: answers may be late"
)
log = logging.getLogger("astrarium.service")
NewWorkers = Callable[[SharedMemory, Listener, NativeEars], Workers]


class NativeNetwork(Protocol):
    """A native network has threads that read calls, and that know which models are ready."""

    def look(self) -> None: ...
    def settle(self) -> None: ...
    def turned_away(self) -> int: ...
    def left(self) -> Mapping[str, int]: ...
    def kept(self) -> int: ...


class LiveService:
    """A live service is made and used inside one event loop: `start`, serve, `drain`, `stop`."""

    def __init__(
        self, plan: ServingPlan, new_workers: NewWorkers, recording: Recording | None = None
    ) -> None:
        self.plan = plan
        self._recording = recording
        self.clock: Callable[[], Time] = monotonic_ns
        front: Any = extension("_front")
        memory = SharedMemory.create(plan.memory)
        origins = 2 * plan.threads + 1  # HTTP's threads, those of gRPC, and Python
        self.exchange: Exchange = front.Exchange(memory.view, len(plan.models), plan.queue, origins)
        self._tensor_store = TensorStore(memory, self.exchange.arena)
        self._networks: list[NativeNetwork] = []
        self._timed = [0] * self.exchange.origins  # calls of network threads that are on the timeline
        scheduler = cast(Any, extension("_scheduler")).Scheduler(self.exchange, len(plan.workers))
        open_calls = OpenCalls(scheduler, self._tensor_store, lambda ticket: self.calls.ticket_ended(ticket))
        recorder = None if recording is None else recording.section
        self.coordinator = Coordinator(plan, scheduler, open_calls, self.clock, recorder)
        scheduler.start()
        self.fleet = self.coordinator.fleet = Fleet(plan.workers, self.coordinator, self.clock, _later)
        self.repository = self.coordinator.repository = Repository(plan.models, self.fleet)
        self.repository.changed = self._tell_network
        self.isolation = Isolation(
            self.repository, self.fleet, self.coordinator, self.clock, self._tell_network
        )
        ears = HearingScheduler(scheduler, self.coordinator.collect)
        self.workers = new_workers(memory, self.fleet, ears)
        self._calibration = self.coordinator.calibration = Calibration(self._ping, self.clock)
        self._preprocessor = Preprocessor(self._tensor_store, self.coordinator.open_calls.inputs_made)
        self._timelines = Timelines()
        self._metrics = Metrics(self.coordinator.accounts, self, self.clock)
        pinged = self._measured_delays if plan.measured_delays else None
        self._drift = DriftWatch(plan.setup, self.clock(), pinged)
        self.coordinator.accounts.batch_listeners.append(self._saw)
        self._refusals = RefusalWatch(self.coordinator.accounts.models, self.clock())
        self._failures = FailureWatch(self.coordinator.accounts.models, self.clock())
        self._trials: set[asyncio.Task[None]] = set()
        given = self.coordinator, self.repository, self._preprocessor, self._timelines
        self.calls = CallHandler(*given, self.clock, self._closed, self._failures)
        self.garbage = GarbageKeeper()
        self.client_errors = ClientErrors()
        self.long_way: Counter[str] = Counter()  # calls that did not go the short way, by reason
        self._accepted = 0  # calls, when the watch last looked
        self._watch: asyncio.Task[None] | None = None
        self.draining = False

    # its life

    async def start(self) -> None:
        """Start; return once every worker has its models. InputError names a model that cannot be loaded."""
        for model in self.plan.models:
            if model.preprocess is not None:
                self._preprocessor.hook(model.preprocess, f"models.{model.name}.preprocess")
        self.repository.start()
        self.fleet.start(self.workers)
        await self._until_workers_are_up()
        await self._begin()
        self._watch = asyncio.get_running_loop().create_task(self._look_after())

    async def drain(self, grace: float) -> None:
        """Take no more calls and end those that were taken, for at most *grace* seconds."""
        self.draining = True
        self.coordinator.takes_calls(False)
        await self._until(lambda: not self.coordinator.admission.open(), grace)

    async def stop(self, grace: float = 2.0) -> None:
        """End what is still open, with a reason, and stop the workers within *grace* seconds."""
        self.draining = self.fleet.closing = True
        for task in (self._watch, *self._trials):
            if task is not None:
                task.cancel()
        self.workers.hush()
        if self.coordinator.began:
            self.coordinator.close()
        await self.workers.stop(grace)
        self._preprocessor.close()

    @property
    def ready(self) -> bool:
        """Whether calls are taken, a worker is up, and not every loaded model refuses or fails everybody.

        One model that does is not enough: it says so of itself, and the others go on.
        """
        loaded = [entry for entry in self.repository.entries if entry.state == "READY"]
        answering = [entry for entry in loaded if not entry.refusing and not entry.failing]
        return not self._closed() and bool(self.coordinator.present) and bool(answering or not loaded)

    def _closed(self) -> str:
        """Return why no call is taken now; empty where they are."""
        if self.draining:
            return "the server is draining"
        return "" if self.coordinator.expects_worker and self.coordinator.began else "no worker is up"

    # calls

    async def infer(self, call: InferCall) -> InferAnswer:
        return await self.calls.infer(call)

    # models

    def cards(self) -> list[ModelCard]:
        return [entry.card() for entry in self.repository.entries]

    def card(self, model: str) -> ModelCard:
        return self.repository.card(model)

    async def load(self, model: str) -> None:
        entry = self.repository.find(model)
        async with entry.turn:
            self.coordinator.release(entry.plan.index)
            await self.repository.load(entry)
            self._failures.forget(entry.plan.index, self.clock())
            self._show_failing(entry)
            self._tell_network()

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
        self._tell_network()
        try:
            await self._until(lambda: not self.coordinator.admission.open_of(entry.plan.index))
        except asyncio.CancelledError:
            entry.state = "READY"
            entry.reason = ""
            self._tell_network()
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

    # network threads

    def listen_to(self, network: NativeNetwork) -> None:
        """Bring what network threads count into the accounts, and their calls on the timeline."""
        self.coordinator.accounts.tally = self.exchange.tally
        self._networks.append(network)

    def _tell_network(self) -> None:
        """Let network threads know which models are ready, before anything else happens."""
        for network in self._networks:
            network.look()
            network.settle()

    # numbers

    def turned_away(self, model: str, refused: Refused) -> None:
        self.calls.turned_away(self.repository.find(model), refused)

    def went_long_way(self, reason: str) -> None:
        self.long_way[reason] += 1

    def statistics(self, model: str) -> StatisticsOfModel:
        self.coordinator.sync()
        return self.accounts[self.repository.find(model).plan.index].statistics()

    def metrics(self) -> bytes:
        self.coordinator.sync()
        return self._metrics.text()

    def timeline(self, last: int) -> bytes:
        found: list[Any] = []
        for origin in range(self.exchange.origins if self._networks else 0):
            self._timed[origin], calls = self.exchange.last_calls(origin, self._timed[origin])
            found += calls
        for model, gpu, batch, size, in_time, stages in sorted(found, key=_answered):
            name = self.plan.models[model].name
            self._timelines.add(name, gpu, batch, size, in_time, Stages(*stages))
        return self._timelines.trace(last)

    @property
    def accounts(self) -> Sequence[ModelAccounts]:
        return self.coordinator.accounts.models

    def gauges(self) -> dict[str, tuple[str, float]]:
        arena = self._tensor_store.arena
        quarantined = len(self.coordinator.quarantined())
        apart = sum(bool(entry.apart) for entry in self.repository.entries)
        recorded = self._recording is not None and self._recording.goes_on
        kept = "Memory for what clients have begun, or do not take, beside the tensors of accepted calls."
        return {
            "recording": ("1 while what the policy hears and decides is written down.", recorded),
            "workers": ("Workers that can run batches.", len(self.coordinator.present)),
            "quarantined_inputs": ("Inputs that are refused: they broke a worker.", quarantined),
            "models_apart": ("Models in processes of their own: they broke workers.", apart),
            "reserve": ("Processes that are ready to become a worker at once.", self.workers.in_reserve()),
            "unaccounted": ("Calls that the accounts have lost: always 0.", self.coordinator.unaccounted()),
            "waiting_requests": ("Requests that wait for a batch.", self.coordinator.waiting),
            "shared_memory_bytes": ("Shared memory in use for tensors.", arena.used),
            "shared_memory_limit_bytes": ("Shared memory for tensors.", arena.size),
            "kept_bytes": (kept, sum(network.kept() for network in self._networks)),
        }

    def counters(self) -> dict[str, tuple[str, float]]:
        lost = self._recording.lost if self._recording is not None else 0
        return {
            "recording_lost_steps": ("Steps that could not be written down.", lost),
            "worker_restarts": ("Workers that died and were started again.", self.fleet.restarts),
            "policy_errors": ("Times that the policy failed.", self.coordinator.policy_errors),
            "express_calls": ("Accepted calls that came the short way.", self._taken_the_short_way()),
            "connections_turned_away": (
                "Connections for which there was no descriptor: raise ulimit -n.",
                self.client_errors.turned_away,
            ),
            "plan_revisions": ("Times that batches or delays had drifted.", self._drift.revisions),
        }

    def counters_by(self) -> dict[str, tuple[str, str, Mapping[str, int]]]:
        bad = "What came over HTTP and was no request, by the status that it was answered with."
        left = "Connections over gRPC that were closed because of what their clients did, by reason."
        long_way = "Calls that went the long way, which costs about ten times as much, by reason."
        return {
            "long_way": (long_way, "reason", self.long_way),
            "bad_requests": (bad, "status", self.client_errors.bad_requests),
            "connections_left": (left, "reason", self._left()),
            "collections": ("Garbage collections of the frontend.", "moment", self.garbage.collections),
        }

    def facts(self) -> dict[str, tuple[str, Mapping[str, str]]]:
        uvicorn = self.plan.uvicorn
        python = self.plan.python_policy
        path = {
            "network": "uvicorn" if uvicorn else "native",
            "policy": "python" if python else "native",
            "reason": python or uvicorn,
        }
        return {"path": ("Who reads calls and who decides on them, and why Python does.", path)}

    # helpers

    def _left(self) -> Counter[str]:
        left: Counter[str] = Counter()
        for network in self._networks:
            left.update(network.left())
        return left

    def _taken_the_short_way(self) -> int:
        return sum(self.exchange.tally(one.index)[0] for one in self.plan.models) if self._networks else 0

    async def _until_workers_are_up(self) -> None:
        limit = self.plan.start_limit
        up = await self._until(
            lambda: len(self.coordinator.present) == len(self.plan.workers), limit / SECOND
        )
        for entry in self.repository.entries:
            if entry.plan.loaded and entry.state == "UNAVAILABLE":
                expected = f"a model that can be loaded; {entry.reason}"
                raise InputError(f"models.{entry.plan.name}.backend", entry.plan.backend, expected)
        if not up:
            raise InputError("server.start_limit", write_duration(limit), self._late_start())

    def _late_start(self) -> str:
        """Say which workers are not up, and what they are doing."""
        now = self.clock()
        names = [entry.plan.name for entry in self.repository.entries]
        late = [
            f"worker {worker}, started {rounded_duration(now - since)} ago, "
            + (f"was still loading {', '.join(names[model] for model in models)}" if models else "is not up")
            for worker, models, since in self.fleet.late()
        ]
        return f"a time in which all models are loaded; {'; '.join(late)}; {self.fleet.last_death}"

    async def _begin(self) -> None:
        measured = await self._delays()
        self.coordinator.begin(replace(self.plan.setup, network=measured))
        if self.coordinator.setup.network != measured:
            told = {
                "measured_ms": around(measured) / MILLISECOND,
                "planned_ms": around(self.coordinator.setup.network) / MILLISECOND,
                "model": tightest(self.plan.setup).name,
            }
            log.warning(_DELAYS_CUT, told, extra=told)

    async def _delays(self) -> Network:
        if not self.plan.measured_delays:
            return self.plan.setup.network
        await self._calibration.measure(sorted(self.coordinator.present))
        return self._measured_delays()

    def _measured_delays(self) -> Network:
        """Return what messages take, and on the way there also the inputs.

        Where inputs travel while the batch before is computed, its end is heard late too: by as much the
        next one must leave earlier, or the GPU would wait for it.
        """
        delays = self._calibration.delays()
        (first, each) = self.repository.lead
        heard_late = delays.response if first else 0
        return replace(delays, control=delays.control + first + heard_late, data=each)

    def _ping(self, worker: int) -> None:
        self.workers.send(worker, Ping(self.clock()))

    async def _look_after(self) -> None:
        for looks in count():
            await asyncio.sleep(LOOK_EVERY / SECOND)
            try:
                if looks % SYNC_EVERY == 0:
                    self.coordinator.sync()
                self.fleet.check_for_stuck()
                self._calibration.ping_one(self.fleet.idle())
                self._follow_drift()
                self._collect_garbage()
                self._look_for_refusals()
                self._look_for_failures()
                self.client_errors.no_descriptor(sum(one.turned_away() for one in self._networks))
            except Exception:  # looking after things must not end with one of them
                log.exception("looking after workers and plans failed")

    def _saw(self, model: int, batches: Sequence[KeptGpu]) -> None:
        """Show batches to the drift watch, but for those that ran before all of their model was there."""
        entry = self.repository.entries[model]
        self._drift.saw(model, [batch for batch in batches if entry.whole(batch[0])])

    def _follow_drift(self) -> None:
        revised = self._drift.revised(self.coordinator.setup, self.clock())
        if revised is not None:
            delays = revised.network.control / MILLISECOND, revised.network.response / MILLISECOND
            log.info("batches or delays have drifted; now coordinator %.2f ms, response %.2f ms", *delays)
            self.coordinator.begin(revised)

    def _collect_garbage(self) -> None:
        """Collect garbage in an idle moment: nothing is open, and nothing came since the last look."""
        before = self._accepted
        self._accepted = sum(accounts.accepted for accounts in self.accounts)
        if self._accepted == before and not self.coordinator.admission.open():
            self.garbage.idle_moment()
        else:
            self.garbage.busy_moment()

    def _look_for_refusals(self) -> None:
        for model in self._refusals.look(self.clock()):
            entry = self.repository.entries[model]
            entry.refusing = self.accounts[model].refusing
            told = {"model": entry.plan.name, "reason": entry.refusing}
            if entry.refusing:
                log.warning("model %(model)s is not ready: %(reason)s; planning anew", told, extra=told)
                # A policy that learnt something wrong in a bad moment gives way to one that has not.
                self.coordinator.begin(self.coordinator.setup)
            else:
                log.info("model %(model)s no longer turns away all calls", told, extra=told)

    def _look_for_failures(self) -> None:
        now = self.clock()
        for model in self._failures.look(now):
            self._tell_failing(self.repository.entries[model], "a client's call was answered")
        for model in self._failures.due(now):
            task = asyncio.get_running_loop().create_task(self._try_out(self.repository.entries[model]))
            self._trials.add(task)
            task.add_done_callback(self._trials.discard)

    async def _try_out(self, entry: Entry) -> None:
        """Find out by a made-up call whether a model that failed every call works again."""
        try:
            why = await self.calls.try_out(entry)
        except Exception as error:  # nothing was tried, and the next trial comes all the same
            self._failures.not_tried(entry.plan.index, self.clock())
            if not isinstance(error, Refused):
                log.exception("a trial call of model %s failed", entry.plan.name)
            return
        if self._failures.tried(entry.plan.index, why, self.clock()):
            self._tell_failing(entry, "a trial call was answered")
        else:
            self._show_failing(entry)

    def _tell_failing(self, entry: Entry, why_ready: str) -> None:
        """Say in the log that a model fails every call, or no longer does; let network threads know."""
        self._show_failing(entry)
        told = {"model": entry.plan.name, "reason": entry.failing or why_ready}
        if entry.failing:
            log.warning("model %(model)s is not ready: %(reason)s; it will be tried", told, extra=told)
        else:
            log.info("model %(model)s is ready again: %(reason)s", told, extra=told)
        self._tell_network()

    def _show_failing(self, entry: Entry) -> None:
        entry.failing = self.accounts[entry.plan.index].failing

    async def _until(self, holds: Callable[[], bool], limit: float | None = None) -> bool:
        end = None if limit is None else self.clock() + limit * SECOND
        while not holds():
            if end is not None and self.clock() > end:
                return False
            await asyncio.sleep(POLL)
        return True


def _later(after: Time, call: Callable[[], None]) -> object:
    return asyncio.get_running_loop().call_later(after / SECOND, call)


def _answered(call: tuple[Any, ...]) -> Time:
    """Return when a call that a network thread tells of was answered: the last of its stages."""
    moment: Time = call[-1][-1]
    return moment
