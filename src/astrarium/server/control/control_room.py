"""The control room keeps the books of a server whose calls the native scheduler decides on.

call -> desk (shared memory, a number) -> native scheduler (policy) -> worker
worker -> native scheduler -> desk -> answer

Calls that network threads have read never come here: what was counted of them is brought into the books by
`sync`. Those that Python has read are handed to the native scheduler, which treats all calls alike, and come
back when they have ended. The policy is a native twin, or is asked in Python (`python_policy`).
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from time import time_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from astrarium.core.optional import extension
from astrarium.core.quantities import MILLISECOND, Time
from astrarium.core.trace import Step
from astrarium.server.control.accounts.causes import INPUTS
from astrarium.server.control.accounts.last_minute import LastMinute
from astrarium.server.control.accounts.model_accounts import BatchesDone, ModelBooks
from astrarium.server.control.accounts.tally import Tally, enter, growth
from astrarium.server.control.calls.open_calls import Desk
from astrarium.server.control.calls.ticket import EndedBatch, KeptGpu, Ticket
from astrarium.server.control.health.bounds import bounded
from astrarium.server.control.health.calibration import Calibration
from astrarium.server.control.plan import ServingPlan
from astrarium.server.control.python_policy import PythonPolicy
from astrarium.server.control.repository import Repository
from astrarium.server.control.workers.blame import Blame, Loss
from astrarium.server.control.workers.fleet import Fleet
from astrarium.serving.contract import UNSERVED, Setup
from astrarium.serving.live.messages import ModelNews, Pong, Shapes
from astrarium.serving.live.process import Death
from astrarium.serving.state import Outcome
from astrarium.serving.twin.live import LiveTwin
from astrarium.serving.twin.native import native_setup

if TYPE_CHECKING:
    from astrarium._front import Scheduler

Recorder = Callable[[Setup], Callable[[Step], None]]  # given anew to every policy that takes over
log = logging.getLogger("astrarium.control")


class QuarantinedInput(NamedTuple):
    """An input is held from *since* until *until* (monotonic clock) for what it did."""

    model: int
    digest: int
    since: Time
    until: Time
    reason: str


class HearingScheduler:
    """The native scheduler hears the workers; what is not about batches, and ended calls, it passes on."""

    def __init__(self, scheduler: Scheduler, collect: Callable[[], None]) -> None:
        self._scheduler = scheduler
        self._collect = collect
        self.bell = scheduler.bell
        self.watch = scheduler.watch
        self.forget = scheduler.forget
        self.stop = scheduler.stop

    def packets(self) -> list[tuple[int, bytes]]:
        self._collect()
        return self._scheduler.packets()


class ControlRoom:
    """All who read calls ask the *admission*. A *recorder* notes what the policy hears and decides."""

    def __init__(
        self,
        plan: ServingPlan,
        desk: Desk,
        scheduler: Scheduler,
        clock: Callable[[], Time],
        recorder: Recorder | None = None,
    ) -> None:
        self.plan = plan
        self.desk = desk
        self.clock = clock
        self.admission = scheduler.admission
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
        self.began = False
        self._taking = True
        self.tally: Callable[[int], tuple[Any, ...]] | None = None  # what network threads counted of a model
        self._counted = [Tally()] * len(plan.models)
        self._scheduler = scheduler
        self._recorder = recorder
        scheduler.profile(plan.profiled_share, random.getrandbits(64))
        self._numbers = count()
        self._tickets: dict[int, Ticket] = {}
        self._unmade: list[Ticket] = []  # their inputs are still being made

    # policies

    def begin(self, setup: Setup) -> None:
        """Let a fresh policy decide from now on, with this setup, bounded; what waits goes over to it."""
        setup = bounded(setup, self.plan.setup)
        planned = native_setup(extension("_native"), setup)
        name = self.plan.policy_name
        if self.plan.python_policy:
            self._scheduler.begin_in_python(planned, name, _maker(self.plan, setup, self._recorder))
        else:
            self._scheduler.begin(planned, _twin(self.plan, setup).parameters)
        self.setup = setup
        self.began = True
        self._publish()

    def close(self) -> None:
        """End everything that is open, calls whose inputs are still being made among it."""
        self.began = False
        self.takes_calls(False)
        unmade = self._unmade
        self._unmade = []
        for ticket in unmade:
            ticket.outcome = Outcome.DROPPED
            ticket.cause = UNSERVED
            ticket.reason = UNSERVED
            self.desk.ended(ticket)
        self._scheduler.close()
        self.collect()
        self.sync()

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

    # calls

    def take(self, ticket: Ticket) -> None:
        """Take a call whose inputs lie in shared memory, or are on their way there."""
        self.desk.open += 1
        if ticket.inputs_ready:
            self._hand_in(ticket)
        else:
            self._unmade.append(ticket)

    def inputs_made(self) -> None:
        """Hand in the calls that waited for inputs that a hook has made."""
        made = [ticket for ticket in self._unmade if ticket.inputs_ready]
        self._unmade = [ticket for ticket in self._unmade if not ticket.inputs_ready]
        for ticket in made:
            if ticket.broken:
                ticket.outcome = Outcome.FAILED
                ticket.cause = INPUTS
                ticket.reason = ticket.broken
                self.desk.ended(ticket)
            else:
                self._hand_in(ticket)

    def _hand_in(self, ticket: Ticket) -> None:
        number = next(self._numbers)
        self._tickets[number] = ticket
        call = ticket.call
        rooms = (ticket.block, ticket.replies, ticket.room)
        moments = call.received, ticket.deadline
        arrived = self._scheduler.arrive(
            number, ticket.model, call.rows, ticket.application, moments, rooms, ticket.shapes
        )
        assert arrived, "there is room for as many calls as may be open"

    def collect(self) -> None:
        """Hear which calls have ended, and which workers must be killed."""
        for ended in self._scheduler.ended():
            try:
                self._ended(*ended)
            except Exception:  # one that makes trouble must not keep the others from being told
                log.exception("the end of call %d could not be told", ended[0])
        for worker, reason in self._scheduler.troubles():
            if self._fleet.workers is not None:
                self._fleet.workers.kill(worker, Death(reason, by_its_work=False))

    def _ended(
        self,
        number: int,
        outcome: int,
        cause: str,
        reason: str,
        shapes: Sequence[Shapes] | None,
        retried: bool,
        batch: tuple[int, ...],
    ) -> None:
        ticket = self._tickets.pop(number)
        ticket.outcome = Outcome(outcome)
        ticket.cause = cause
        ticket.reason = reason or cause
        ticket.retried, ticket.batch = retried, EndedBatch(*batch)
        if shapes is not None:
            ticket.reply_shapes = list(shapes)
        self.desk.ended(ticket)

    @property
    def waiting(self) -> int:
        return self._scheduler.waiting()

    # workers

    def worker_ready(self, worker: int) -> None:
        if worker < len(self.plan.workers):
            self.present.add(worker)
        self._scheduler.worker_joined(worker)
        self._publish()

    def worker_lost(self, worker: int, loss: Loss) -> Blame | None:
        self.present.discard(worker)
        self._publish()
        if self.repository is not None:
            self.repository.lost(worker, loss.reason)
        model, calls, certain = self._scheduler.worker_left(worker, *loss)
        return None if model < 0 else Blame(model, calls, certain)

    def oldest(self, worker: int) -> tuple[int, Time] | None:
        return self._scheduler.oldest(worker)

    def model_news(self, gpu: int, news: ModelNews) -> None:
        assert self.repository is not None
        self.repository.heard(gpu, news)

    def pong(self, gpu: int, news: Pong) -> None:
        assert self.calibration is not None
        self.calibration.pong(news.sent, news.received, news.heard)

    # models

    def set_apart(self, model: int, workers: list[int]) -> None:
        self._scheduler.set_apart(model, workers)

    def quarantined(self) -> list[QuarantinedInput]:
        return [QuarantinedInput(*one) for one in self._scheduler.quarantined()]

    def release(self, model: int) -> int:
        return self._scheduler.release(model)

    # books

    def sync(self) -> None:
        """Bring what was counted elsewhere into the books."""
        self._sync_calls()
        models, seconds = self._scheduler.batches()
        for model, batches, last in models:
            self.note(model, BatchesDone(*batches), last)
        for gpu, second, busy in seconds:
            self.gpu_busy[gpu] += busy
            self.recent.add(second, busy=busy)
        for model, books in enumerate(self.books):
            books.retried = self._scheduler.retried(model)
        self.policy_errors = self._note_policy_errors()

    def _sync_calls(self) -> None:
        if self.tally is None:
            return
        now = self.clock()
        for model, books in enumerate(self.books):
            before = self._counted[model]
            tally = Tally(*self.tally(model))
            if tally == before:
                continue
            self._counted[model], new = tally, Tally(*growth(before, tally))
            enter(books, new)
            if ended := sum(new.ended.values()):
                self.recent.add(now, ended=ended, good=new.ended.get(("in_time", ""), 0))

    def note(self, model: int, new: BatchesDone, last: Sequence[KeptGpu]) -> None:
        """Enter batches that ended well in their model's books, and tell those who listen of the *last*."""
        self.books[model].batches_done(new, time_ns() // MILLISECOND)
        for listener in self.listeners:
            listener(model, last)

    def _note_policy_errors(self) -> int:
        errors, last = self._scheduler.policy_errors()
        if errors != self.policy_errors:
            log.error("the policy %s failed: %s", self.plan.policy_name, last)
        return errors

    def unaccounted(self) -> int:
        """Return how many calls are not where the books say that they are: 0, or there is a defect."""
        opened = self._open_here()
        return abs(opened - len(self._tickets) - len(self._unmade)) + self._scheduler.astray(opened)

    def _open_here(self) -> int:
        """Return how many calls are open of those that Python has read."""
        elsewhere = sum(tally.accepted - sum(tally.ended.values()) for tally in self._counted)
        return sum(books.open for books in (*self.books, *self.trials)) - elsewhere

    @property
    def _fleet(self) -> Fleet:
        assert self.fleet is not None, "the control room has no fleet yet"
        return self.fleet


def _twin(plan: ServingPlan, setup: Setup) -> LiveTwin:
    policy = plan.new_policy(setup)
    assert isinstance(policy, LiveTwin), "else the plan says why the policy is in Python"
    return policy


def _maker(plan: ServingPlan, setup: Setup, recorder: Recorder | None) -> Callable[[], PythonPolicy]:
    """Return what makes a fresh policy; the native scheduler does so between two of its turns.

    It knows of nobody who knows the scheduler: nothing would ever free the two.
    """
    return partial(_made, plan, setup, recorder)


def _made(plan: ServingPlan, setup: Setup, recorder: Recorder | None) -> PythonPolicy:
    policy = plan.new_policy(setup)  # a setup that no policy takes leaves the recording as it is
    return PythonPolicy(plan.policy_name, policy, setup, recorder(setup) if recorder else None)
