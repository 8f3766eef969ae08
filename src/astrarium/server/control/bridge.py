"""The bridge brings calls that network threads have read to the Python control room.

Their tensors lie in shared memory already. A call that has ended goes back to its network thread, which
answers it, counts it and gives its memory back: none of that is done here.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from astrarium.core.units import Time
from astrarium.server.contract import InferCall
from astrarium.server.control.control_room import Control
from astrarium.server.control.repository import Repository
from astrarium.server.control.tickets import EndedBatch, Ticket
from astrarium.serving.live.messages import Shapes
from astrarium.serving.state import Outcome


class Bridge:
    """A bridge belongs to one event loop; *native* is a `Bridge` of `astrarium._front`."""

    def __init__(self, native: Any, control: Control, repository: Repository) -> None:
        self._native, self._control, self._repository = native, control, repository

    def start(self) -> None:
        asyncio.get_running_loop().add_reader(self._native.fd(), self.hear)
        self.hear()  # from now on it is told when there are calls

    def stop(self) -> None:
        """Let no more calls come, and take those that are on their way."""
        self._control.takes_calls(False)
        self.hear()
        asyncio.get_running_loop().remove_reader(self._native.fd())

    def hear(self) -> None:
        for call in self._native.pop():
            self._take(*call)

    def _take(
        self,
        number: int,
        model: int,
        rows: int,
        application: int,
        moments: tuple[Time, Time, Time],
        rooms: tuple[int, int, int],
        shapes: Shapes | None,
    ) -> None:
        entry, (received, admitted, deadline) = self._repository.entries[model], moments
        call = InferCall(entry.plan.name, (), rows, received)
        ticket = Ticket(call, model, entry.tensors, application, deadline)
        ticket.admitted, ticket.shapes = admitted, shapes
        ticket.block, ticket.replies, ticket.room = rooms
        ticket.send_home = partial(self._end, number)
        self._control.take(ticket)

    def _end(self, number: int, ticket: Ticket) -> None:
        answered = ticket.outcome in (Outcome.IN_TIME, Outcome.LATE)  # its thread will know which
        outcome = Outcome.IN_TIME if answered else ticket.outcome
        batch = _facts(ticket.batch) if answered and ticket.batch is not None else None
        told = ticket.cause, ticket.reason, ticket.reply_shapes, ticket.retried
        self._native.end(number, outcome, *told, batch)


def _facts(batch: EndedBatch) -> tuple[int, ...]:
    moments = batch.dispatched, batch.planned_end, batch.started, batch.finished
    return batch.tag, batch.gpu, batch.size, *moments
