"""The desk counts the open calls that Python has read, and gives their memory back."""

from __future__ import annotations

from collections.abc import Callable

from astrarium.server.control.calls.tensor_store import TensorStore
from astrarium.server.control.calls.ticket import Ticket


class Desk:
    """The desk tells *ended* once of every ticket; its block is given back when it is released."""

    def __init__(self, tensor_store: TensorStore, ended: Callable[[Ticket], None]) -> None:
        self.tensor_store = tensor_store
        self._ended = ended
        self.open = 0

    def ended(self, ticket: Ticket) -> None:
        self.open -= 1
        self._ended(ticket)

    def release(self, ticket: Ticket) -> None:
        ticket.released = True
        self.tensor_store.settle(ticket)
