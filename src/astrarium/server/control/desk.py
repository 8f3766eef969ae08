"""The desk takes calls in, follows their parts through the batches, and settles how each call ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count

from astrarium.server.control.causes import INPUTS
from astrarium.server.control.tickets import InFlightBatch, TensorStore, Ticket
from astrarium.serving.live.messages import BatchDone, BatchMember, RunBatch, packed
from astrarium.serving.state import Outcome

# A call is as bad as its worst part.
_WORSE = {Outcome.OPEN: 0, Outcome.IN_TIME: 1, Outcome.LATE: 2, Outcome.DROPPED: 3, Outcome.FAILED: 4}
_ANSWERED = (Outcome.OPEN, Outcome.IN_TIME, Outcome.LATE)  # of a call whose last part is answered


class Desk:
    """The desk tells *ended* once of every ticket that Python has read, when its last part has ended."""

    def __init__(self, tensor_store: TensorStore, ended: Callable[[Ticket], None]) -> None:
        self.tensor_store, self._ended = tensor_store, ended
        self._numbers = count()
        self._parts: dict[int, tuple[Ticket, int]] = {}  # by the request's number: whose, and which row
        self.open = 0

    def open_parts(self, ticket: Ticket) -> Iterator[int]:
        """Yield a number for each row; from here on the desk must end the call."""
        self.open += 1
        for row in range(ticket.call.rows):
            yield self._numbered(ticket, row)

    def refuse(self, ticket: Ticket, cause: str, reason: str) -> None:
        """End a call that no policy is to hear of."""
        self.open += 1
        ticket.outcome, ticket.cause, ticket.reason = Outcome.FAILED, cause, reason
        self.ended(ticket)

    def again(self, request: int) -> int:
        """Return another number for a part that is tried a second time."""
        ticket, row = self._parts.pop(request)
        ticket.retried = True
        return self._numbered(ticket, row)

    def ticket_of(self, request: int) -> Ticket:
        return self._parts[request][0]

    def held(self, flights: Iterable[InFlightBatch]) -> tuple[int, int]:
        """Return how many calls are here that Python has read, and that network threads wait for.

        The latter are here until their block went home: a worker may write into it after their last part
        has ended, in one of these *flights*.
        """
        own: set[Ticket] = set()
        home: set[Ticket] = set()
        for ticket, _ in self._parts.values():
            (own if ticket.send_home is None else home).add(ticket)
        home.update(ticket for flight in flights for ticket, _ in flight.rows if ticket.send_home is not None)
        return len(own), sum(ticket.block >= 0 for ticket in home)

    # batches

    def inputs_ready(self, flight: InFlightBatch) -> bool:
        return all(self._parts[request.id][0].inputs_ready for request in flight.requests)

    def order(self, flight: InFlightBatch) -> RunBatch:
        """Return the order to run parts whose inputs could be made; the worker may write for them now."""
        parts = (self._parts[request.id] for request in flight.requests)
        flight.rows = [(ticket, row) for ticket, row in parts if not ticket.broken]
        for ticket, _ in flight.rows:
            ticket.holders += 1
        members = packed([_member(ticket, row) for ticket, row in flight.rows])
        shapes = [ticket.shapes for ticket, _ in flight.rows]
        return RunBatch(flight.tag, flight.model, members, flight.start, shapes if any(shapes) else None)

    def returned(self, flight: InFlightBatch, done: BatchDone | None) -> None:
        """Note that the worker writes no more for a batch; *done* tells what it wrote."""
        for ticket, _ in flight.rows:
            ticket.holders -= 1
            self.tensor_store.settle(ticket)
        if done is not None and done.shapes is not None:
            for (ticket, row), shapes in zip(flight.rows, done.shapes, strict=True):
                ticket.reply_shapes[row] = shapes

    def answer_early(self, flight: InFlightBatch) -> None:
        """Let network threads answer calls that this batch was the last of, before the books hear of it."""
        for ticket, _ in flight.rows:
            last = ticket.open_parts == 1 and not ticket.holders
            if last and ticket.send_home is not None and ticket.outcome in _ANSWERED:
                ticket.outcome, ticket.batch = Outcome.IN_TIME, flight
                self.release(ticket)

    def part_ended(
        self, request: int, outcome: Outcome, cause: str, reason: str, flight: InFlightBatch | None
    ) -> None:
        ticket, _ = self._parts.pop(request)
        if ticket.broken:
            outcome, cause, reason = Outcome.FAILED, INPUTS, ticket.broken
        if _WORSE[outcome] > _WORSE[ticket.outcome]:
            ticket.outcome, ticket.cause, ticket.reason = outcome, cause, reason
        ticket.batch = flight or ticket.batch
        ticket.open_parts -= 1
        if not ticket.open_parts:
            self.ended(ticket)

    def ended(self, ticket: Ticket) -> None:
        """Tell that a call has ended; one that a network thread has read goes back to it."""
        self.open -= 1
        if ticket.send_home is None:
            self._ended(ticket)
        else:
            self.release(ticket)

    def release(self, ticket: Ticket) -> None:
        ticket.released = True
        self.tensor_store.settle(ticket)

    def _numbered(self, ticket: Ticket, row: int) -> int:
        number = next(self._numbers)
        self._parts[number] = ticket, row
        return number


def _member(ticket: Ticket, row: int) -> BatchMember:
    reply = ticket.replies + row * ticket.room
    return BatchMember(ticket.block, ticket.call.rows, row, reply, ticket.room, ticket.application)
