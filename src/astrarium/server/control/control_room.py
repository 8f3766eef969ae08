"""The control room passes calls between the desk, the policy and the workers.

call -> desk (shared memory, a number) -> scheduler (policy) -> fleet -> worker
worker -> fleet -> scheduler (books) -> desk -> answer
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from time import time_ns
from typing import Protocol

from astrarium.core.trace import Step
from astrarium.core.units import MICROSECOND, MILLISECOND, Time
from astrarium.server.control.books import LastMinute, ModelBooks
from astrarium.server.control.bounds import alone, bounded
from astrarium.server.control.desk import Desk
from astrarium.server.control.fleet import Fleet
from astrarium.server.control.plan import ServingPlan
from astrarium.server.control.repository import Repository
from astrarium.server.control.scheduler import Scheduler, SchedulerLoop
from astrarium.server.control.tickets import InFlightBatch, Ticket
from astrarium.server.control.watches import Calibration
from astrarium.serving.contract import Setup
from astrarium.serving.live.messages import (
    BatchBroken,
    BatchCancelled,
    BatchDone,
    BatchMember,
    ModelLoaded,
    ModelRefused,
    ModelUnloaded,
    Pong,
)
from astrarium.serving.policies import ServingPolicy
from astrarium.serving.state import Fate, Outcome

PUNCTUAL = 0.9  # the share of answers that are to come within the margin
STEP = 100 * MICROSECOND  # how far one answer can move it, nearly: a millisecond in eleven answers
LARGEST = 0.4  # of an objective: with less than the rest of it, hardly a batch could be planned


class Margins:
    """Deadlines are planned with a margin by model: how much later than planned answers have lately been.

    Each late answer widens a margin by nine times what each punctual one narrows it.
    """

    def __init__(self, models: int) -> None:
        self._margins = [0.0] * models

    def answered(self, flight: InFlightBatch, now: Time) -> None:
        setup = flight.scheduler.setup
        slip = now - flight.planned_end - setup.network.response
        margin = self._margins[flight.model]
        margin += PUNCTUAL * STEP if slip > margin else (PUNCTUAL - 1.0) * STEP
        self._margins[flight.model] = min(max(0.0, margin), LARGEST * setup.models[flight.model].slo)

    def planned(self, model: int, deadline: Time, setup: Setup, now: Time) -> Time:
        """Return the deadline to plan with; by it a lone request can still be tried, if it can be at all."""
        soonest = now + alone(setup.models[model], setup.network)
        return max(deadline - round(self._margins[model]), min(deadline, soonest))


PACE = MILLISECOND  # that arrivals and news may wait while the event loop reads
WORKER_LOST, MODEL_ERROR, POLICY_ERROR = "worker_lost", "model_error", "policy_error"
Recorder = Callable[[Setup], Callable[[Step], None]]  # given anew to every scheduler
log = logging.getLogger("astrarium.control")


class AnswerSender(Protocol):
    """An answer sender answers calls as soon as their batch is done, before the books hear of it."""

    def sending(self, flight: InFlightBatch) -> None:
        """Prepare for a batch that is about to be sent; its rows are known."""

    def returned(self, flight: InFlightBatch, answer: bool) -> None:
        """Send what is ready, if there is an *answer* at all."""


class Control:
    def __init__(
        self, plan: ServingPlan, desk: Desk, loop: SchedulerLoop, recorder: Recorder | None = None
    ) -> None:
        self.plan, self.desk, self._loop, self._recorder = plan, desk, loop, recorder
        self.setup = plan.setup
        self.books = [ModelBooks(model.name) for model in plan.models]
        self.recent = LastMinute()
        self.gpu_busy = [0] * len(plan.workers)  # nanoseconds
        self.scheduler: Scheduler | None = None
        self.fleet: Fleet | None = None  # these three need a control room before they can be made
        self.repository: Repository | None = None
        self.calibration: Calibration | None = None
        self.present: set[int] = set()  # GPUs whose workers can run batches
        self.policy_errors = 0
        self.margins = Margins(len(plan.models))
        self.has_news: Callable[[], bool] = lambda: False  # whether workers have said what nobody heard yet
        self._kept_pace: Time = 0
        self._in_flight: list[set[InFlightBatch]] = [set() for _ in plan.workers]  # by GPU
        self.answer_sender: AnswerSender | None = None
        self.listeners: list[
            Callable[[InFlightBatch, BatchDone], None]
        ] = []  # who wants to see finished batches

    # one scheduler after the other

    def begin(self, setup: Setup) -> None:
        """Let a fresh policy decide from now on, with this setup, bounded; what waits goes over to it."""
        setup = bounded(setup, self.plan.setup)
        policy = self.plan.new_policy(setup)  # a setup that no policy takes changes nothing
        old, new = self.scheduler, self._scheduler(setup, policy)
        handed = [] if old is None else [(old.base, request) for request in old.retire()]
        self.setup, self.scheduler = setup, new
        for base, request in handed:
            moments = base + request.arrival, base + request.deadline
            self.scheduler.arrived(request.id, request.model, *moments, request.application)

    def _scheduler(self, setup: Setup, policy: ServingPolicy) -> Scheduler:
        free = {gpu for gpu in self.present if not self._in_flight[gpu]}
        away = [gpu.id for gpu in setup.gpus if gpu.id not in free]
        record = self._recorder(setup) if self._recorder else None
        return Scheduler(setup, policy, self, self._loop, away, record)

    def policy_failed(self, scheduler: Scheduler, error: Exception) -> None:
        """End the waiting requests of a failed policy as failed, and let a fresh policy take over."""
        log.error("the policy %s failed", self.plan.policy_name, exc_info=error)
        self.policy_errors += 1
        if scheduler is not self.scheduler:
            return
        abandoned = scheduler.abandon()
        self.scheduler = self._scheduler(self.setup, self.plan.new_policy(self.setup))
        for request in abandoned:
            reason = f"the policy {self.plan.policy_name} failed: {type(error).__name__}: {error}"
            self.desk.part_ended(request.id, Outcome.FAILED, POLICY_ERROR, reason, None)

    @property
    def waiting(self) -> int:
        return len(self.scheduler.state.waiting) if self.scheduler is not None else 0

    def close(self) -> None:
        """End everything open, here and in schedulers that still have batches under way."""
        schedulers = {flight.scheduler for in_flight in self._in_flight for flight in in_flight}
        for scheduler in [*(schedulers - {self.scheduler}), self.scheduler]:  # the last takes second tries
            if scheduler is not None:
                scheduler.close()
        self.scheduler = None

    # what the scheduler wants done

    def launch(self, flight: InFlightBatch) -> None:
        self._in_flight[flight.gpu].add(flight)
        self._fleet.launch(flight)

    def cancel(self, flight: InFlightBatch) -> None:
        self._fleet.cancel(flight, self.setup.preemption_cost)

    def request_ended(
        self, request: int, outcome: Outcome, reason: str, flight: InFlightBatch | None
    ) -> None:
        if outcome is not Outcome.FAILED or flight is None:
            self.desk.part_ended(request, outcome, reason, reason, flight)
        elif flight.lost and self._may_retry(request):
            self._retry(request)
        elif flight.lost:
            retried = self.desk.ticket_of(request).retried
            why = "it was the second try" if retried else "it is too late to try again"
            reason = f"the worker of GPU {flight.gpu} {flight.lost}, and {why}"
            self.desk.part_ended(request, outcome, WORKER_LOST, reason, flight)
        else:
            self.desk.part_ended(request, outcome, MODEL_ERROR, reason, flight)

    def batch_ended(self, flight: InFlightBatch, fate: Fate, started: Time, finished: Time) -> None:
        ended = flight.done.computed if flight.done is not None else finished  # answers are the host's work
        busy = max(0, ended - max(started, flight.dispatched))
        self.gpu_busy[flight.gpu] += busy
        self.recent.add(finished, busy=busy)

    # what the fleet has to tell

    def inputs_ready(self, flight: InFlightBatch) -> bool:
        return self.desk.inputs_ready(flight)

    def members(self, flight: InFlightBatch) -> list[BatchMember]:
        members = self.desk.members(flight)
        if self.answer_sender is not None:
            self.answer_sender.sending(flight)
        return members

    def worker_ready(self, gpu: int) -> None:
        self.present.add(gpu)
        if self.scheduler is not None:
            self.scheduler.gpu_joined(gpu)

    def worker_lost(self, gpu: int, flights: Sequence[InFlightBatch], reason: str) -> None:
        self.present.discard(gpu)
        if self.repository is not None:
            self.repository.lost(gpu)
        concerned = {flight.scheduler for flight in flights} | {self.scheduler}
        for flight in flights:
            self._unload(flight, None)
        self._in_flight[gpu].clear()
        for scheduler in concerned:
            if scheduler is not None:
                scheduler.gpu_left(gpu)

    def returned(self, flight: InFlightBatch, news: BatchDone | BatchBroken | BatchCancelled) -> None:
        done = flight.done = news if isinstance(news, BatchDone) else None
        self._unload(flight, done)
        match news:
            case BatchDone() | BatchBroken() if flight.cancelled:  # it ended before the order to stop came
                flight.scheduler.preempted(flight, news.started, news.finished)
            case BatchDone():
                flight.scheduler.finished(flight, news.started)
                self._count(flight, news)
            case BatchBroken(_, _, _, error):
                flight.scheduler.broken(flight, error)
            case BatchCancelled(_, started, stopped):
                flight.scheduler.preempted(flight, started, stopped)
        self._free(flight)

    def model_news(self, gpu: int, news: ModelLoaded | ModelRefused | ModelUnloaded) -> None:
        assert self.repository is not None
        self.repository.heard(gpu, news)

    def pong(self, gpu: int, news: Pong) -> None:
        assert self.calibration is not None
        self.calibration.pong(news.sent, news.received)

    # helpers

    @property
    def _fleet(self) -> Fleet:
        assert self.fleet is not None, "the control room has no fleet yet"
        return self.fleet

    def _unload(self, flight: InFlightBatch, done: BatchDone | None) -> None:
        """Free a batch's calls and send their answers, before the books hear of them."""
        self.desk.returned(flight, done)
        try:
            if self.answer_sender is not None:
                self.answer_sender.returned(flight, answer=done is not None and not flight.cancelled)
        except Exception:  # the books must hear of this batch whatever became of its answers
            log.exception("the answers of batch %d could not be sent", flight.tag)
        flight.rows = []  # its tickets point back at it: a cycle would be left to the garbage collector

    def _free(self, flight: InFlightBatch) -> None:
        """Let a GPU that worked for an earlier scheduler join the present one when it is done."""
        in_flight = self._in_flight[flight.gpu]
        in_flight.discard(flight)
        if flight.scheduler is self.scheduler or self.scheduler is None:
            return
        if all(one.scheduler is self.scheduler for one in in_flight):
            self.scheduler.gpu_joined(flight.gpu)

    def _may_retry(self, request: int) -> bool:
        ticket = self.desk.ticket_of(request)
        soonest = self._loop.clock() + alone(self.setup.models[ticket.model], self.setup.network)
        again = not ticket.retried and not ticket.answered
        return again and self.scheduler is not None and soonest <= ticket.deadline

    def _retry(self, request: int) -> None:
        ticket = self.desk.ticket_of(request)
        self.books[ticket.model].retried += 1
        self.arrive(self.desk.again(request), ticket)

    def arrive(self, request: int, ticket: Ticket) -> None:
        assert self.scheduler is not None
        deadline = self.margins.planned(ticket.model, ticket.deadline, self.setup, self._loop.clock())
        self.scheduler.arrived(request, ticket.model, ticket.call.received, deadline, ticket.application)

    def keep_pace(self, now: Time) -> None:
        """Hear news and decide between reads: an event loop with much to read would leave GPUs idle."""
        if (now - self._kept_pace > PACE or self.has_news()) and self.scheduler is not None:
            self._kept_pace = now
            self._fleet.hear()
            self.scheduler.decide_now()

    def _count(self, flight: InFlightBatch, done: BatchDone) -> None:
        spans = done.computing - done.started, done.computed - done.computing, done.finished - done.computed
        self.books[flight.model].batch_done(len(flight.requests), *spans, time_ns() // MILLISECOND)
        for listener in self.listeners:
            listener(flight, done)
        if flight.scheduler.listens:
            self._profile(flight, done)

    def _profile(self, flight: InFlightBatch, done: BatchDone) -> None:
        """Tell the policy what some of the requests would have taken alone, where the backend knows."""
        for request, time in zip(flight.requests, done.own_times, strict=False):
            if random.random() < self.plan.profiled_share:
                flight.scheduler.profiled(request, time)
