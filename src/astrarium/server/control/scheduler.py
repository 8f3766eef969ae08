"""A scheduler runs one policy on the wall clock. It handles ids and deadlines; no tensor comes near it.

When profiles have drifted a new scheduler with a new policy takes over: what waits is handed on, what runs
ends in the books of the old one, and until then its GPU is away in the books of the new.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from time import monotonic_ns
from typing import Any, Protocol

from astrarium.core.engine import Engine
from astrarium.core.trace import Step
from astrarium.core.units import SECOND, Time
from astrarium.run.live import Alarm, KernelAlarm, LiveDriver
from astrarium.server.control.tickets import Decider, InFlightBatch
from astrarium.serving import contract
from astrarium.serving.contract import Request, Setup
from astrarium.serving.policies import ServingPolicy, listens_to_profiler
from astrarium.serving.state import Batch, Fate, Ledger, Outcome, ServingState


class SchedulerLoop(Protocol):
    """A scheduler needs this of an event loop: the time, another turn, an alarm. Tests have their own."""

    def clock(self) -> Time: ...
    def soon(self, call: Callable[[], None]) -> object: ...
    def later(self, after: Time, call: Callable[[], None]) -> object: ...
    def alarm(self, ring: Callable[[], None]) -> Alarm: ...


class EventLoop:
    """The event loop is asyncio's, by the monotonic clock."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def clock(self) -> Time:
        return monotonic_ns()

    def soon(self, call: Callable[[], None]) -> object:
        return self._loop.call_soon(call)

    def later(self, after: Time, call: Callable[[], None]) -> object:
        return self._loop.call_later(after / SECOND, call)

    def alarm(self, ring: Callable[[], None]) -> Alarm:
        return KernelAlarm(self._loop, ring)


# request, how and why it ended, when the client has its answer, the number of its batch (-1: none)
RequestEnded = Callable[[int, Outcome, str, Time, int], None]
BatchEnded = Callable[[int, Fate, Time, Time], None]  # batch, fate, started, finished


class LiveLedger(Ledger):
    """A live ledger does not grow: what has ended is told and forgotten."""

    def __init__(self, request_ended: RequestEnded, batch_ended: BatchEnded) -> None:
        super().__init__()
        self._request_ended, self._batch_ended = request_ended, batch_ended
        self._batches = 0
        self.batch_dispatched: Any = {}  # by number, like the column it replaces

    def open_request(self, request: int) -> None:
        """Keep nothing: the books know which requests wait."""

    def end_request(self, request: int, outcome: Outcome, reason: str, now: Time, batch: int = -1) -> None:
        self._request_ended(request, outcome, reason, now, batch)

    def open_batch(self, model: int, gpu: int, size: int, now: Time) -> int:
        number, self._batches = self._batches, self._batches + 1
        self.batch_dispatched[number] = now
        return number

    def end_batch(self, batch: int, fate: Fate, started: Time, finished: Time) -> None:
        """Tell that a batch ended; a preempted one ends twice: when it is stopped, and reported."""
        self.batch_dispatched.pop(batch, None)
        self._batch_ended(batch, fate, started, finished)


_tags = count(1)
log = logging.getLogger("astrarium.scheduler")
_STUCK_AFTER, _SHORTEST_LIMIT = 10, SECOND  # times its estimate, and never sooner than this


class BatchExecutor(Protocol):
    """A batch executor carries out what a policy decides, and hears how requests and batches ended."""

    def launch(self, flight: InFlightBatch) -> None: ...
    def cancel(self, flight: InFlightBatch) -> None: ...
    def request_ended(
        self, request: int, outcome: Outcome, reason: str, flight: InFlightBatch | None
    ) -> None: ...
    def batch_ended(self, flight: InFlightBatch, fate: Fate, started: Time, finished: Time) -> None: ...
    def policy_failed(self, scheduler: Scheduler, error: Exception) -> None: ...


class Scheduler:
    """A scheduler's own time begins at 0 when it does; *away* are GPUs that have not joined yet."""

    def __init__(
        self,
        setup: Setup,
        policy: ServingPolicy,
        executor: BatchExecutor,
        loop: SchedulerLoop,
        away: Iterable[int] = (),
        record: Callable[[Step], None] | None = None,
    ) -> None:
        self.setup, self._executor, self._loop = setup, executor, loop
        self.base = loop.clock()
        self.listens = listens_to_profiler(policy)
        self.state = ServingState(setup, LiveLedger(self._request_ended, self._batch_ended))
        self.engine: Engine[ServingState, Any, Any] = Engine(self.state, policy, record=record)
        self._alarm = _Shifted(loop.alarm(lambda: self._guarded(self._driver.step)), self.base)
        self._driver = LiveDriver(self.engine, self._carry_out, self.now, self._soon, self._alarm)
        self._flights: dict[int, InFlightBatch] = {}  # by run
        self._last_run = [-1] * len(setup.gpus)
        self._ended: list[tuple[int, Outcome, str, InFlightBatch | None]] = []  # and nobody was told yet
        for gpu in away:
            self.gpu_left(gpu)

    def now(self) -> Time:
        return self._loop.clock() - self.base

    # what happened

    def arrived(self, request: int, model: int, received: Time, deadline: Time, application: int) -> None:
        moments = received - self.base, deadline - self.base
        self._driver.post(contract.RequestArrived(Request(request, model, *moments, application)))

    def gpu_joined(self, gpu: int) -> None:
        self._driver.post(contract.GpuJoined(gpu))

    def gpu_left(self, gpu: int) -> None:
        self._driver.post(contract.GpuLeft(gpu))
        for flight in [one for one in self._flights.values() if one.gpu == gpu and one.cancelled]:
            del self._flights[flight.run]  # nobody will report that it has recovered

    def finished(self, flight: InFlightBatch, started: Time, ended: Time) -> None:
        moments = started - self.base, max(0, ended - self.base)
        self._driver.post(contract.BatchFinished(flight.gpu, flight.run, *moments))

    def broken(self, flight: InFlightBatch, error: str) -> None:
        self._driver.post(contract.BatchFailed(flight.gpu, flight.run, error))

    def preempted(self, flight: InFlightBatch, started: Time, stopped: Time) -> None:
        moments = started - self.base, stopped - self.base
        self._driver.post(contract.BatchPreempted(flight.gpu, flight.run, *moments))

    def profiled(self, request: Request, time: Time) -> None:
        self._driver.post(contract.RequestProfiled(request.id, request.model, request.application, time))

    # its end

    def retire(self) -> list[Request]:
        """Decide no more and hand over what waits; what runs still ends in these books."""
        self._settle()
        return self.take_waiting()

    def silence(self) -> None:
        """Let only the books, and no policy, hear what happens from now on."""
        if isinstance(self.engine.policy, _Silence):
            return
        self.engine.policy, self.engine.record = _Silence(), None
        self._driver.forget_timers()
        self._alarm.close()

    def take_waiting(self) -> list[Request]:
        waiting = list(self.state.waiting.values())
        self.state.waiting.clear()
        return waiting

    def abandon(self) -> list[Request]:
        """Silence a policy that failed; hand over requests that wait or were dispatched but never sent."""
        self._settle()
        unsent = [batch for gpu in self.state.gpus for batch in gpu.batches if batch.run not in self._flights]
        for batch in unsent:
            self.state.gpus[batch.gpu].batches.remove(batch)
        return [*self.take_waiting(), *(request for batch in unsent for request in batch.requests)]

    def close(self) -> None:
        """End what is open: waiting requests as unserved, batches as failed."""
        self._settle()
        self.engine.close(self.now())
        self._tell()

    def _settle(self) -> None:
        """Enter what was posted and not decided on in these books, without asking the policy."""
        self.silence()
        while self._driver.pending or self._ended:  # who is told may post a second try
            self._tell()
            self._driver.step()

    # between the driver and the executor

    def _soon(self, call: Callable[[], None]) -> object:
        return self._loop.soon(lambda: self._guarded(call))

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # a policy at fault must not take the server with it
            self._executor.policy_failed(self, error)

    def _carry_out(self, now: Time, actions: Sequence[Any]) -> None:
        """Launch batches first, since GPUs wait for them; then tell how requests ended."""
        for action in actions:
            if type(action) is contract.Dispatch:
                self._launch_new(now, action.gpu)
            elif type(action) is contract.Preempt:
                self._executor.cancel(self._flights[self.state.gpus[action.gpu].recovering])
        self._tell()

    def _tell(self) -> None:
        while self._ended:
            request, outcome, reason, flight = self._ended.pop(0)
            try:
                self._executor.request_ended(request, outcome, reason, flight)
            except Exception:  # one that makes trouble must not keep the others from being told
                log.exception("the end of request %d could not be told", request)

    def _launch_new(self, now: Time, gpu: int) -> None:
        for batch in [one for one in self.state.gpus[gpu].batches if one.run > self._last_run[gpu]]:
            self._last_run[gpu] = batch.run
            flight = self._flights[batch.run] = self._flight(now, batch)
            self._executor.launch(flight)

    def _flight(self, now: Time, batch: Batch) -> InFlightBatch:
        moments = self.base + now, self.base + batch.start
        return in_flight(self, batch.run, batch.gpu, batch.requests, *moments)

    def _request_ended(self, request: int, outcome: Outcome, reason: str, done: Time, run: int) -> None:
        self._ended.append((request, outcome, reason, self._flights.get(run)))

    def _batch_ended(self, run: int, fate: Fate, started: Time, finished: Time) -> None:
        flight = self._flights.get(run)
        if flight is None:
            return  # its GPU left while it recovered
        if fate is Fate.PREEMPTED and not flight.cancelled:
            return  # the books stopped it just now; it ends once its GPU has recovered
        del self._flights[run]
        self._executor.batch_ended(flight, fate, self.base + started, self.base + finished)


def in_flight(
    scheduler: Decider, run: int, gpu: int, requests: list[Request], now: Time, start: Time
) -> InFlightBatch:
    """Return a batch that is sent now, and starts no earlier than it can be there."""
    setup, size, model = scheduler.setup, len(requests), requests[0].model
    estimate, delay = setup.models[model].latency[size], setup.network.delay(size)
    start = max(start, now + delay)
    return InFlightBatch(
        tag=next(_tags),
        scheduler=scheduler,
        run=run,
        gpu=gpu,
        model=model,
        requests=requests,
        # the delay is what the way may take; where it takes less, nobody waits for the rest of it
        start=start - delay,
        dispatched=now,
        planned_end=start + estimate,
        limit=max(_SHORTEST_LIMIT, _STUCK_AFTER * estimate),
    )


class _Shifted:
    """A shifted alarm is one for a clock that began at *base*."""

    def __init__(self, alarm: Alarm, base: Time) -> None:
        self._alarm, self._base = alarm, base

    def set(self, moment: Time) -> None:
        self._alarm.set(self._base + moment)

    def close(self) -> None:
        self._alarm.close()


class _Silence:
    """A retired scheduler's policy decides nothing."""

    def decide(self, now: Time, events: Sequence[Any], state: ServingState) -> Sequence[Any]:
        return ()
