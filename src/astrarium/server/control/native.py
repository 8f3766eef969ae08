"""The native control room leaves deciding, batches and answers to the native front; Python keeps the rest.

Calls that native threads have read never come here. Those of the long way do: they are handed to the native
scheduler, which treats all calls alike, and come back when they have ended. What was counted elsewhere is
brought into the books by `sync`.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, cast

from astrarium.core.errors import extension
from astrarium.core.units import Time
from astrarium.server.control.blame import Blame, Loss
from astrarium.server.control.books import BatchesDone
from astrarium.server.control.bounds import bounded
from astrarium.server.control.causes import INPUTS
from astrarium.server.control.control_room import ControlRoom
from astrarium.server.control.desk import Desk
from astrarium.server.control.plan import ServingPlan
from astrarium.server.control.quarantine import QuarantinedInput
from astrarium.server.control.tickets import EndedBatchFacts, InFlightBatch, Ticket
from astrarium.serving.contract import UNSERVED, Setup
from astrarium.serving.live.messages import BatchBroken, BatchCancelled, BatchDone, RunBatch, Shapes
from astrarium.serving.live.process import Death
from astrarium.serving.state import Outcome
from astrarium.serving.twin import LiveTwin, native_setup

if TYPE_CHECKING:
    from astrarium._front import Scheduler

log = logging.getLogger("astrarium.control")


class HearingScheduler:
    """The native scheduler hears the workers; what is not about batches, and ended calls, it passes on."""

    def __init__(self, scheduler: Any, collect: Callable[[], None]) -> None:
        self._scheduler, self._collect = scheduler, collect
        self.bell, self.watch, self.forget = scheduler.bell, scheduler.watch, scheduler.forget
        self.stop = scheduler.stop

    def packets(self) -> list[tuple[int, bytes]]:
        self._collect()
        packets: list[tuple[int, bytes]] = self._scheduler.packets()
        return packets


class NativeControl(ControlRoom):
    can_set_apart = True

    def __init__(
        self, plan: ServingPlan, desk: Desk, scheduler: Scheduler, clock: Callable[[], Time]
    ) -> None:
        super().__init__(plan, desk, clock, cast(Any, scheduler.admission))
        self._scheduler = scheduler
        scheduler.profile(plan.profiled_share, random.getrandbits(64))
        self._native = extension("_native")
        self._numbers = count()
        self._tickets: dict[int, Ticket] = {}
        self._unmade: list[Ticket] = []  # their inputs are still being made

    # plans

    def begin(self, setup: Setup) -> None:
        """Let a fresh policy decide from now on, with this setup, bounded; what waits goes over to it."""
        setup = bounded(setup, self.plan.setup)
        policy = self.plan.new_policy(setup)
        assert isinstance(policy, LiveTwin)
        self._scheduler.begin(native_setup(self._native, setup), policy.parameters)
        self.setup, self.began = setup, True
        self._publish()

    def close(self) -> None:
        """End everything that is open, calls whose inputs are still being made among it."""
        self.began = False
        self.takes_calls(False)
        unmade, self._unmade = self._unmade, []
        for ticket in unmade:
            ticket.outcome, ticket.cause, ticket.reason = Outcome.DROPPED, UNSERVED, UNSERVED
            self.desk.ended(ticket)
        self._scheduler.close()
        self.collect()
        self.sync()

    # calls

    def take(self, ticket: Ticket) -> None:
        self.desk.open += 1
        if ticket.inputs_ready:
            self._hand_in(ticket)
        else:
            self._unmade.append(ticket)

    def inputs_made(self) -> None:
        made = [ticket for ticket in self._unmade if ticket.inputs_ready]
        self._unmade = [ticket for ticket in self._unmade if not ticket.inputs_ready]
        for ticket in made:
            if ticket.broken:
                ticket.outcome, ticket.cause, ticket.reason = Outcome.FAILED, INPUTS, ticket.broken
                self.desk.ended(ticket)
            else:
                self._hand_in(ticket)

    def _hand_in(self, ticket: Ticket) -> None:
        number = next(self._numbers)
        self._tickets[number] = ticket
        call, rooms = ticket.call, (ticket.block, ticket.replies, ticket.room)
        moments = call.received, ticket.deadline
        arrived = self._scheduler.arrive(
            number, ticket.model, call.rows, ticket.application, moments, rooms, ticket.shapes
        )
        assert arrived, "there is room for as many calls as may be open"

    def count_answer(self, model: int) -> None:
        """Count nothing: the scheduler has seen the answer."""

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
        shapes: list[Shapes] | None,
        retried: bool,
        batch: tuple[int, ...],
    ) -> None:
        ticket = self._tickets.pop(number)
        ticket.outcome, ticket.cause, ticket.reason = Outcome(outcome), cause, reason or cause
        ticket.retried, ticket.batch = retried, EndedBatchFacts(*batch)
        if shapes is not None:
            ticket.reply_shapes = list(shapes)
        self.desk.ended(ticket)

    # workers

    def worker_ready(self, worker: int) -> None:
        if worker < len(self.plan.workers):
            self.present.add(worker)
        self._scheduler.worker_joined(worker)
        self._publish()

    def worker_lost(self, worker: int, flights: Sequence[InFlightBatch], loss: Loss) -> Blame | None:
        self.present.discard(worker)
        self._publish()
        if self.repository is not None:
            self.repository.lost(worker, loss.reason)
        model, calls, certain = self._scheduler.worker_left(worker, *loss)
        return None if model < 0 else Blame(model, calls, certain)

    def abandon(self, model: int) -> None:
        """Do nothing: a model that is set apart goes on."""

    def set_apart(self, model: int, workers: list[int]) -> None:
        self._scheduler.set_apart(model, workers)

    def quarantined(self) -> list[QuarantinedInput]:
        return [QuarantinedInput(*one) for one in self._scheduler.quarantined()]

    def release(self, model: int) -> int:
        return self._scheduler.release(model)

    def inputs_ready(self, flight: InFlightBatch) -> bool:
        raise AssertionError("batches go their own way here")

    def order(self, flight: InFlightBatch) -> RunBatch:
        raise AssertionError("batches go their own way here")

    def returned(self, flight: InFlightBatch, news: BatchDone | BatchBroken | BatchCancelled) -> None:
        raise AssertionError("batches go their own way here")

    def oldest(self, worker: int) -> tuple[int, Time] | None:
        return self._scheduler.oldest(worker)

    # books

    @property
    def waiting(self) -> int:
        return self._scheduler.waiting()

    def unaccounted(self) -> int:
        opened = self._open_here()
        return abs(opened - len(self._tickets) - len(self._unmade)) + self._scheduler.astray(opened)

    def sync(self) -> None:
        super().sync()
        models, seconds = self._scheduler.batches()
        for model, batches, last in models:
            self.note(model, BatchesDone(*batches), last)
        for gpu, second, busy in seconds:
            self.gpu_busy[gpu] += busy
            self.recent.add(second, busy=busy)
        for model, books in enumerate(self.books):
            books.retried = self._scheduler.retried(model)
        self.policy_errors = self._note_policy_errors()

    def _note_policy_errors(self) -> int:
        errors, last = self._scheduler.policy_errors()
        if errors != self.policy_errors:
            log.error("the policy %s failed: %s", self.plan.policy_name, last)
        return errors
