"""The control room passes calls between the desk, the policy and the workers.

call -> desk (shared memory, a number) -> scheduler (policy) -> fleet -> worker
worker -> fleet -> scheduler (books) -> desk -> answer
"""

from __future__ import annotations

import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import pairwise
from time import time_ns
from typing import Any

from astrarium.core.errors import extension
from astrarium.core.quantities import rounded_duration
from astrarium.core.trace import Step
from astrarium.core.units import MILLISECOND, Time
from astrarium.server.control.admission import Admission
from astrarium.server.control.blame import Blame, Loss
from astrarium.server.control.books import BatchesDone, LastMinute, ModelBooks, Tally, enter, growth
from astrarium.server.control.bounds import alone, bounded
from astrarium.server.control.causes import MODEL_ERROR, POLICY_ERROR, QUARANTINED, WORKER_LOST
from astrarium.server.control.desk import Desk
from astrarium.server.control.fleet import Fleet
from astrarium.server.control.plan import ServingPlan
from astrarium.server.control.quarantine import LASTS, Quarantine, QuarantinedInput
from astrarium.server.control.repository import Repository
from astrarium.server.control.scheduler import Scheduler, SchedulerLoop, in_flight
from astrarium.server.control.solo import SoloTries
from astrarium.server.control.tickets import EndedBatch, InFlightBatch, KeptGpu, Ticket, kept_gpu
from astrarium.server.control.watches import Calibration
from astrarium.serving.contract import Request, Setup
from astrarium.serving.live.messages import BatchBroken, BatchCancelled, BatchDone, ModelNews, Pong, RunBatch
from astrarium.serving.policies import ServingPolicy
from astrarium.serving.state import Fate, Outcome
from astrarium.serving.twin import native_setup

Recorder = Callable[[Setup], Callable[[Step], None]]  # given anew to every scheduler
log = logging.getLogger("astrarium.control")


class ControlRoom(ABC):
    """A control room has a scheduler, native or in Python; this is what both kinds have in common.

    All who read calls ask the *admission*.
    """

    def __init__(
        self, plan: ServingPlan, desk: Desk, clock: Callable[[], Time], admission: Admission
    ) -> None:
        self.plan, self.desk, self.clock, self.admission = plan, desk, clock, admission
        self.setup = plan.setup
        self.books = [ModelBooks(model.name) for model in plan.models]
        self.trials = [ModelBooks(model.name) for model in plan.models]  # of calls that we made up ourselves
        self.recent = LastMinute()
        self.gpu_busy = [0] * len(plan.workers)  # nanoseconds
        self.fleet: Fleet | None = None  # these three need a control room before they can be made
        self.repository: Repository | None = None
        self.calibration: Calibration | None = None
        self.present: set[int] = set()  # GPUs whose workers can run batches
        self.policy_errors = 0
        self.listeners: list[Callable[[int, Sequence[KeptGpu]], None]] = []
        self.began, self._taking = False, True
        self.tally: Callable[[int], tuple[Any, ...]] | None = None  # what network threads counted of a model
        self._counted = [Tally()] * len(plan.models)

    # who is let in

    def takes_calls(self, takes: bool) -> None:
        self._taking = takes
        self._publish()

    def _publish(self) -> None:
        """Tell those who read calls whether any are taken now, and when a worker will be there for them."""
        expected = 0 if self.present or self.fleet is None else self.fleet.back_at()
        self.admission.expect_worker(expected)
        self.admission.close(not (self._taking and self.began and (self.present or expected)))

    @property
    def expects_worker(self) -> bool:
        """Whether calls can be answered, now or as soon as a worker is back."""
        return bool(self.present) or (self.fleet is not None and self.fleet.back_at() > 0)

    def answered(self, model: int, batch: EndedBatch, now: Time) -> None:
        self.admission.answered(model, now - batch.planned_end - self.setup.network.response)

    def count_answer(self, model: int) -> None:
        self.admission.count_answer(model)

    # news and books

    def model_news(self, gpu: int, news: ModelNews) -> None:
        assert self.repository is not None
        self.repository.heard(gpu, news)

    def pong(self, gpu: int, news: Pong) -> None:
        assert self.calibration is not None
        self.calibration.pong(news.sent, news.received, news.heard)

    def note(self, model: int, new: BatchesDone, last: Sequence[KeptGpu]) -> None:
        """Enter batches that ended well in their model's books, and tell those who listen of the *last*."""
        self.books[model].batches_done(new, time_ns() // MILLISECOND)
        for listener in self.listeners:
            listener(model, last)

    def sync(self) -> None:
        """Bring what was counted elsewhere into the books."""
        if self.tally is None:
            return
        now = self.clock()
        for model, books in enumerate(self.books):
            before, tally = self._counted[model], Tally(*self.tally(model))
            if tally == before:
                continue
            self._counted[model], new = tally, Tally(*growth(before, tally))
            enter(books, new)
            if ended := sum(new.ended.values()):
                self.recent.add(now, ended=ended, good=new.ended.get(("in_time", ""), 0))

    @abstractmethod
    def unaccounted(self) -> int:
        """Return how many calls are not where the books say that they are: 0, or there is a defect."""

    def _open_here(self) -> int:
        """Return how many calls are open of those that Python has read."""
        elsewhere = sum(tally.accepted - sum(tally.ended.values()) for tally in self._counted)
        return sum(books.open for books in (*self.books, *self.trials)) - elsewhere

    @property
    def _fleet(self) -> Fleet:
        assert self.fleet is not None, "the control room has no fleet yet"
        return self.fleet


class Control(ControlRoom):
    """This control room decides in Python; with an *exchange*, also on calls of network threads."""

    can_set_apart = False

    def __init__(
        self,
        plan: ServingPlan,
        desk: Desk,
        loop: SchedulerLoop,
        recorder: Recorder | None = None,
        exchange: Any = None,
    ) -> None:
        admission = exchange.admission if exchange else Admission(plan.setup, plan.queue)
        super().__init__(plan, desk, loop.clock, admission)
        self._loop, self._recorder, self._exchange = loop, recorder, exchange
        self.scheduler: Scheduler | None = None
        self._in_flight: list[set[InFlightBatch]] = [set() for _ in plan.workers]  # by GPU
        self._solo = SoloTries(self)
        self._quarantine = Quarantine(len(plan.models), desk.tensor_store.memory.view)

    # one scheduler after the other

    def begin(self, setup: Setup) -> None:
        """Let a fresh policy decide from now on, with this setup, bounded; what waits goes over to it."""
        setup = bounded(setup, self.plan.setup)
        policy = self.plan.new_policy(setup)  # a setup that no policy takes changes nothing
        old, new = self.scheduler, self._scheduler(setup, policy)
        handed = [] if old is None else [(old.base, request) for request in old.retire()]
        self.setup, self.scheduler, self.began = setup, new, True
        self._replan()
        for base, request in handed:
            moments = base + request.arrival, base + request.deadline
            self.scheduler.arrived(request.id, request.model, *moments, request.application)

    def _replan(self) -> None:
        """Tell those who read calls what is planned now."""
        planned: Any = self.setup
        if self._exchange is not None:
            self._exchange.response = self.setup.network.response
            planned = native_setup(extension("_native"), self.setup)
        self.admission.plan(planned, len(self.present), self.clock())
        self._publish()

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

    def sync(self) -> None:
        super().sync()
        self.admission.look(self.clock())

    def set_apart(self, model: int, workers: list[int]) -> None:
        """Do nothing: the Python scheduler knows one worker of a GPU."""

    def quarantined(self) -> list[QuarantinedInput]:
        return self._quarantine.all(self.clock())

    def release(self, model: int) -> int:
        return self._quarantine.release(model)

    def unaccounted(self) -> int:
        own, ours = self.desk.held(flight for flights in self._in_flight for flight in flights)
        opened = self._open_here()
        if self._exchange is None:
            return abs(opened - own) + abs(opened - self.admission.open())
        astray: int = self._exchange.astray(held=ours, open_in_python=opened)
        return abs(opened - own) + astray

    def inputs_made(self) -> None:
        """Send the batches that waited for inputs that a hook has made."""
        self._fleet.pump_all()

    @property
    def waiting(self) -> int:
        return len(self.scheduler.state.waiting) if self.scheduler is not None else 0

    def close(self) -> None:
        """End everything open, here and in schedulers that still have batches under way."""
        schedulers = {flight.scheduler for in_flight in self._in_flight for flight in in_flight}
        for scheduler in [*(schedulers - {self.scheduler}), self.scheduler]:  # the last takes second tries
            if scheduler is not None:
                scheduler.close()
        self._solo.close()
        self._fleet.drop_unsent()
        self.scheduler, self.began = None, False
        self.takes_calls(False)

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
        elif flight.lost:
            self._lost(request, flight)
        else:
            self.desk.part_ended(request, outcome, MODEL_ERROR, reason, flight)

    def _lost(self, request: int, flight: InFlightBatch) -> None:
        """Try a call again that was with a lost worker: alone where its batch is suspect, and once."""
        told = f"the worker of GPU {flight.gpu} {flight.lost}"
        if flight.suspect and flight.size == 1:
            self._convict(request, flight, f"{told} while it ran this call alone")
        elif flight.suspect:
            self._solo.add(
                request, f"{told} while it ran a batch of {flight.size} calls, this one among them"
            )
            rest = self.desk.ticket_of(request).deadline - self.clock()
            self._loop.later(max(0, rest), self._solo.give_up_late)
        elif self.in_time(request):
            self._retry(request)
        else:
            reason = f"{told}, and it is too late to try again"
            self.desk.part_ended(request, Outcome.FAILED, WORKER_LOST, reason, flight)

    def _convict(self, request: int, flight: InFlightBatch, reason: str) -> None:
        self._quarantine.add(self.desk.ticket_of(request), reason, self.clock())
        told = f"{reason}; the same input is refused for {rounded_duration(LASTS)}"
        self.desk.part_ended(request, Outcome.FAILED, WORKER_LOST, told, flight)

    def batch_ended(self, flight: InFlightBatch, fate: Fate, started: Time, finished: Time) -> None:
        ended = flight.done.computed if flight.done is not None else finished  # answers are the host's work
        busy = max(0, ended - max(started, flight.dispatched))
        self.gpu_busy[flight.gpu] += busy
        self.recent.add(finished, busy=busy)

    # what the fleet has to tell

    def inputs_ready(self, flight: InFlightBatch) -> bool:
        return self.desk.inputs_ready(flight)

    def order(self, flight: InFlightBatch) -> RunBatch:
        return self.desk.order(flight)

    def worker_ready(self, worker: int) -> None:
        self.present.add(worker)
        self._replan()
        if self.scheduler is not None and not self._solo.try_next(worker):
            self.scheduler.gpu_joined(worker)

    def worker_lost(self, worker: int, flights: Sequence[InFlightBatch], loss: Loss) -> Blame | None:
        self.present.discard(worker)
        self._replan()
        if self.repository is not None:
            self.repository.lost(worker, loss.reason)
        guilty, sent = self._guilty(flights, loss), {flight.tag for flight in flights if flight.rows}
        if guilty is not None:
            guilty.suspect = True
        concerned = {flight.scheduler for flight in flights} | {self.scheduler}
        for flight in flights:
            self._unload(flight, None)
        self._in_flight[worker].clear()
        for scheduler in concerned:
            if scheduler is not None:
                scheduler.gpu_left(worker)
        ran = guilty or next((flight for flight in flights if flight.tag in sent), None)
        return None if ran is None else Blame(ran.model, ran.size, guilty is not None)

    def abandon(self, model: int) -> None:
        """End the calls of a model that wait to be tried alone."""
        self._solo.abandon(model)

    @staticmethod
    def _guilty(flights: Sequence[InFlightBatch], loss: Loss) -> InFlightBatch | None:
        """Return the batch that broke a worker: the one that it named, or the first that it had.

        That somebody outside ended a worker is believed of a call once.
        """
        sent = [flight for flight in flights if flight.rows]
        named = next((flight for flight in sent if flight.tag == loss.run), sent[0] if sent else None)
        again = named is not None and any(ticket.retried for ticket, _ in named.rows)
        return named if loss.by_its_work or again else None

    def returned(self, flight: InFlightBatch, news: BatchDone | BatchBroken | BatchCancelled) -> None:
        done = flight.done = news if isinstance(news, BatchDone) else None
        self._unload(flight, done)
        match news:
            case BatchDone() | BatchBroken() if flight.cancelled:  # it ended before the order to stop came
                flight.scheduler.preempted(flight, news.started, news.finished)
            case BatchDone():
                moments = news.started, news.computing, news.computed, news.finished
                _, _, kept = kept_gpu(flight.size, *moments)
                flight.scheduler.finished(flight, news.started, news.started + kept)
                self._count(flight, news)
            case BatchBroken(_, _, _, error):
                flight.scheduler.broken(flight, error)
            case BatchCancelled(_, started, stopped):
                flight.scheduler.preempted(flight, started, stopped)
        self._free(flight)

    # helpers

    def _unload(self, flight: InFlightBatch, done: BatchDone | None) -> None:
        """Free a batch's calls and let network threads answer theirs, before the policy hears of it."""
        self.desk.returned(flight, done)
        try:
            if done is not None and not flight.cancelled:
                self.desk.answer_early(flight)
        except Exception:  # the books must hear of this batch whatever became of its answers
            log.exception("the answers of batch %d could not be sent", flight.tag)
        flight.rows = []  # its tickets point back at it: a cycle would be left to the garbage collector

    def _free(self, flight: InFlightBatch) -> None:
        """Let a GPU that worked for an earlier scheduler join the present one when it is done."""
        in_flight = self._in_flight[flight.gpu]
        in_flight.discard(flight)
        if flight.scheduler is self.scheduler or self.scheduler is None:
            return
        if not in_flight and self._solo.try_next(flight.gpu):
            return
        if all(one.scheduler is self.scheduler for one in in_flight):
            self.scheduler.gpu_joined(flight.gpu)

    def in_time(self, request: int) -> bool:
        """Whether a call can be tried once more, from now on or when a worker is back."""
        ticket, back_at = self.desk.ticket_of(request), 0 if self.present else self._fleet.back_at()
        soonest = max(self.clock(), back_at) + alone(self.setup.models[ticket.model], self.setup.network)
        return self.scheduler is not None and soonest <= ticket.deadline

    def _retry(self, request: int) -> None:
        ticket = self.desk.ticket_of(request)
        self._count_retry(ticket)
        self.arrive(self.desk.again(request), ticket)

    def _count_retry(self, ticket: Ticket) -> None:
        self.books[ticket.model].retried += not ticket.retried
        ticket.retried = True

    def launch_alone(self, request: int, gpu: int) -> None:
        ticket, now = self.desk.ticket_of(request), self.clock()
        self._count_retry(ticket)
        alone = Request(request, ticket.model, ticket.call.received, ticket.deadline, ticket.application)
        flight = in_flight(self._solo, -1, gpu, [alone], now, now)
        self._solo.launched(flight)
        self.launch(flight)

    def _told(self, held: QuarantinedInput) -> str:
        rest = rounded_duration(held.until - self.clock())
        return f"{held.reason}; the same input is refused for another {rest}"

    def held(self, request: int) -> str:
        """Return why a call need not be tried: its input, or another row of it, has broken a worker."""
        ticket = self.desk.ticket_of(request)
        if ticket.outcome is Outcome.FAILED:
            return ticket.reason
        held = self._quarantine.find(ticket, self.clock())
        return "" if held is None else self._told(held)

    def take(self, ticket: Ticket) -> None:
        """Take a call whose inputs lie in shared memory, or are on their way there."""
        now = self.clock()
        if (held := self._quarantine.find(ticket, now)) is not None:
            self.desk.refuse(ticket, QUARANTINED, self._told(held))
            return
        for request in self.desk.open_parts(ticket):
            self.arrive(request, ticket)

    def planned(self, model: int, deadline: Time) -> Time:
        """Return the deadline to plan with; by it a lone request can still be tried, if it can be at all."""
        soonest = self.clock() + alone(self.setup.models[model], self.setup.network)
        return max(deadline - self.admission.margin(model), min(deadline, soonest))

    def arrive(self, request: int, ticket: Ticket) -> None:
        assert self.scheduler is not None
        deadline = self.planned(ticket.model, ticket.deadline)
        self.scheduler.arrived(request, ticket.model, ticket.call.received, deadline, ticket.application)

    def _count(self, flight: InFlightBatch, done: BatchDone) -> None:
        moments = done.started, done.computing, done.computed, done.finished
        gathering, computing, writing = (after - before for before, after in pairwise(moments))
        new = BatchesDone.one(flight.size, gathering, computing, writing)
        self.note(flight.model, new, [kept_gpu(flight.size, *moments)])
        if flight.scheduler.listens:
            self._profile(flight, done)

    def _profile(self, flight: InFlightBatch, done: BatchDone) -> None:
        """Tell the policy what some of the requests would have taken alone, where the backend knows."""
        for request, time in zip(flight.requests, done.own_times, strict=False):
            if random.random() < self.plan.profiled_share:
                flight.scheduler.profiled(request, time)
