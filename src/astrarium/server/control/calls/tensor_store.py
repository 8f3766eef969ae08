"""The tensor store keeps the tensors of open calls in shared memory, where workers read and write them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from astrarium.serving.live import layout
from astrarium.serving.live.layout import aligned
from astrarium.serving.live.messages import Shapes
from astrarium.serving.live.shared_memory import SharedMemory
from astrarium.serving.live.tensors import Tensor

if TYPE_CHECKING:
    from astrarium._front import Arena
from astrarium.server.control.calls.ticket import Ticket


class TensorStore:
    """The tensor store gives each call a block: its inputs, then space for the reply to each row."""

    def __init__(self, memory: SharedMemory, arena: Arena) -> None:
        self.memory = memory
        self.arena = arena

    def take_in(self, ticket: Ticket, inputs: Sequence[Tensor]) -> bool:
        """Copy the inputs, in the model's order, where workers find them; False where memory is full."""
        shapes: Shapes = [(tensor.shape, len(tensor.data)) for tensor in inputs]
        if not self._take(ticket, layout.block_bytes(shapes)):
            return False
        ticket.shapes = None if ticket.tensors.fixed_inputs else shapes
        self._write(ticket.block, inputs)
        return True

    def _take(self, ticket: Ticket, size: int) -> bool:
        reply = self._bytes_of_reply(ticket, size)
        block = self.arena.take(size + ticket.call.rows * reply)
        if block is None:
            return False
        ticket.block = block
        ticket.replies = block + size
        ticket.reply_bytes = reply
        return True

    @staticmethod
    def _bytes_of_reply(ticket: Ticket, size: int) -> int:
        return ticket.tensors.bytes_of_reply(-(-size // ticket.call.rows))

    @staticmethod
    def bytes_of(tensors: Sequence[Tensor]) -> int:
        return sum(aligned(len(tensor.data)) for tensor in tensors)

    def needed(self, ticket: Ticket, inputs: int) -> int:
        """Return the bytes for inputs of this many bytes and the answer to them."""
        return inputs + ticket.call.rows * self._bytes_of_reply(ticket, inputs)

    def outputs(self, ticket: Ticket) -> list[Tensor]:
        """Return views on the answer; rows are joined where there are several."""
        rows = [self._row(ticket, row) for row in range(ticket.call.rows)]
        return rows[0] if len(rows) == 1 else [joined(column) for column in zip(*rows, strict=True)]

    def settle(self, ticket: Ticket) -> None:
        """Give the block back if nobody needs it any more."""
        if ticket.released and ticket.block >= 0:
            block = ticket.block
            ticket.block = -1
            self.arena.give_back(block)

    def _write(self, at: int, tensors: Iterable[Tensor]) -> None:
        view = self.memory.view
        for tensor in tensors:
            size = len(tensor.data)
            view[at : at + size] = tensor.data
            gap = aligned(size) - size
            view[at + size : at + size + gap] = bytes(gap)  # equal inputs are equal blocks: see `Quarantine`
            at += aligned(size)

    def _row(self, ticket: Ticket, row: int) -> list[Tensor]:
        specs = ticket.tensors.outputs
        shapes = ticket.reply_shapes[row] or layout.whole_shapes(specs, 1)
        at = ticket.replies + row * ticket.reply_bytes
        return list(layout.tensors_at(self.memory.view, at, specs, shapes))


def joined(rows: Sequence[Tensor]) -> Tensor:
    """Return one tensor of the rows of a call; ValueError where their answers have unequal shapes."""
    first = rows[0]
    if any(row.shape != first.shape for row in rows):
        raise ValueError(f"output {first.name}: the rows of one call have answers of unequal shapes")
    data = b"".join(row.data for row in rows)
    return Tensor(first.name, first.datatype, (len(rows), *first.shape[1:]), data)
