"""Open calls are those that Python has read and that have not ended."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from astrarium.server.control.accounts.causes import INPUTS
from astrarium.server.control.calls.tensor_store import TensorStore
from astrarium.server.control.calls.ticket import EndedBatch, Ticket
from astrarium.serving.contract import EXPIRED, UNSERVED
from astrarium.serving.ledger import Outcome
from astrarium.serving.live.messages import Shapes

if TYPE_CHECKING:
    from astrarium._scheduler import Scheduler

log = logging.getLogger("astrarium.control")


class EndedCall(NamedTuple):
    """What the native scheduler says of a call that has ended, in its order."""

    number: int
    outcome: int
    cause: str
    reason: str
    shapes: Sequence[Shapes] | None
    retried: bool
    batch: tuple[int, ...]


class OpenCalls:
    """Open calls get numbers, under which the scheduler knows them; *on_end* is called once for each.

    The block of a ticket is given back when it is released.
    """

    def __init__(
        self, scheduler: Scheduler, tensor_store: TensorStore, on_end: Callable[[Ticket], None]
    ) -> None:
        self._scheduler = scheduler
        self.tensor_store = tensor_store
        self.on_end = on_end
        self._numbers = count()
        self._by_number: dict[int, Ticket] = {}
        self._without_inputs: list[Ticket] = []  # they are still being made

    def __len__(self) -> int:
        return len(self._by_number) + len(self._without_inputs)

    def take(self, ticket: Ticket) -> None:
        """Take a call whose inputs lie in shared memory, or are on their way there."""
        if ticket.inputs_ready:
            self._hand_in(ticket)
        else:
            self._without_inputs.append(ticket)

    def inputs_made(self) -> None:
        """Hand in the calls that waited for inputs that have been made since."""
        ready = [ticket for ticket in self._without_inputs if ticket.inputs_ready]
        self._without_inputs = [ticket for ticket in self._without_inputs if not ticket.inputs_ready]
        for ticket in ready:
            if ticket.expired:
                self._end(ticket, Outcome.DROPPED, EXPIRED, EXPIRED)
            elif ticket.broken:
                self._end(ticket, Outcome.FAILED, INPUTS, ticket.broken)
            else:
                self._weigh(ticket)
                self._hand_in(ticket)

    def end_without_inputs(self) -> None:
        """End the calls whose inputs are still being made: the server stops."""
        unserved = self._without_inputs
        self._without_inputs = []
        for ticket in unserved:
            self._end(ticket, Outcome.DROPPED, UNSERVED, UNSERVED)

    def collect(self) -> None:
        """End the calls that the scheduler has ended since the last time."""
        for ended in self._scheduler.ended():
            try:
                self._ended(EndedCall(*ended))
            except Exception:  # one that makes trouble must not keep the others from being told
                log.exception("the end of call %d could not be told", ended[0])

    def release(self, ticket: Ticket) -> None:
        ticket.released = True
        self.tensor_store.settle(ticket)

    def _hand_in(self, ticket: Ticket) -> None:
        number = next(self._numbers)
        self._by_number[number] = ticket
        arrived = self._scheduler.arrive(
            number,
            ticket.model,
            ticket.call.rows,
            ticket.application,
            (ticket.call.received, ticket.deadline),
            (ticket.block, ticket.replies, ticket.reply_bytes),
            ticket.shapes,
            ticket.tensors.length_of(ticket.shapes),
        )
        assert arrived, "there is a place for as many calls as may be open"

    def _weigh(self, ticket: Ticket) -> None:
        """Let a call weigh what its length takes: it was let in before anybody knew that."""
        admission = self._scheduler.admission
        length = ticket.tensors.length_of(ticket.shapes)
        weight = admission.cost(ticket.model, length, ticket.call.rows).weight
        admission.reweigh(ticket.model, ticket.weight, weight, ticket.objective)
        ticket.weight = weight

    def _ended(self, ended: EndedCall) -> None:
        ticket = self._by_number.pop(ended.number)
        ticket.retried = ended.retried
        ticket.batch = EndedBatch(*ended.batch)
        if ended.shapes is not None:
            ticket.reply_shapes = list(ended.shapes)
        self._end(ticket, Outcome(ended.outcome), ended.cause, ended.reason or ended.cause)

    def _end(self, ticket: Ticket, outcome: Outcome, cause: str, reason: str) -> None:
        ticket.outcome = outcome
        ticket.cause = cause
        ticket.reason = reason
        self.on_end(ticket)
