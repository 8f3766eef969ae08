"""A ticket is a client's call while it is served; its tensors lie in the tensor store's shared memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from astrarium.core.quantities import Time
from astrarium.server.contract import InferCall, Kind
from astrarium.serving.live import arena
from astrarium.serving.live.arena import SharedMemory, aligned
from astrarium.serving.live.messages import Shapes
from astrarium.serving.live.tensors import Tensor, TensorSpec
from astrarium.serving.state import Outcome

if TYPE_CHECKING:
    from astrarium._front import Arena

LEAST_ROOM = 1 << 14  # bytes for an answer whose size nobody knows beforehand


@dataclass(frozen=True)
class Tensors:
    """A model's tensors are its inputs and outputs, with their bytes where no dimension is open."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    fixed_inputs: bool = field(init=False)
    reply_bytes: int | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fixed_inputs", arena.fixed_bytes(self.inputs) is not None)
        object.__setattr__(self, "reply_bytes", arena.fixed_bytes(self.outputs))

    def room(self, input_bytes: int) -> int:
        """Return the bytes for the answer to one item: as much as its input where its size is not known."""
        if self.reply_bytes is not None:
            return self.reply_bytes
        return aligned(max(input_bytes, LEAST_ROOM))


class Waiter(Protocol):
    """A waiter is told that a call has ended: a future, or something like it."""

    def done(self) -> bool: ...
    def set_result(self, result: None, /) -> None: ...


class EndedBatch(NamedTuple):
    """What comes back from the native scheduler with a call, of the batch that carried its last part."""

    tag: int
    gpu: int
    size: int
    dispatched: Time
    planned_end: Time
    started: Time
    finished: Time


# Of a batch that ended well: when, its size, and for how long no other batch could have its GPU.
KeptGpu = tuple[Time, int, Time]


@dataclass(slots=True, eq=False)
class Ticket:
    """A ticket has a part for each row of its call, and has ended when they all have.

    No worker writes into its block any more by then; that is given back once the client has its answer.
    """

    call: InferCall
    model: int
    tensors: Tensors
    application: int
    deadline: Time
    answer: Waiter
    reply_shapes: list[Shapes | None] = field(init=False)  # by row; None or empty: the model's own
    block: int = -1  # -1: no memory yet, or none any more
    shapes: Shapes | None = None  # of the inputs; None: the model's own
    replies: int = 0  # where the first reply room begins
    room: int = 0
    admitted: Time = 0
    outcome: Outcome = Outcome.OPEN
    cause: str = ""  # one of a few words: what metrics count
    reason: str = ""  # what the client is told
    batch: EndedBatch | None = None  # the last one that carried a part to its end
    released: bool = False
    retried: bool = False
    trial: bool = False  # a made-up call of our own, to find out whether its model works again
    inputs_ready: bool = True
    broken: str = ""  # what went wrong while its inputs were made
    blamed: Kind = Kind.MODEL_FAILED  # whose fault that is

    def __post_init__(self) -> None:
        self.reply_shapes = [None] * self.call.rows


class TensorStore:
    """The tensor store gives each call a block: its inputs first, then a reply room for each of its rows."""

    def __init__(self, memory: SharedMemory, arena: Arena) -> None:
        self.memory = memory
        self.arena = arena

    def take_in(self, ticket: Ticket, given: Sequence[Tensor]) -> bool:
        """Copy the inputs, in the model's order, where workers find them. False where there is no room."""
        shapes: Shapes = [(tensor.shape, len(tensor.data)) for tensor in given]
        if not self._take(ticket, arena.block_bytes(shapes)):
            return False
        ticket.shapes = None if ticket.tensors.fixed_inputs else shapes
        self._write(ticket.block, given)
        return True

    def _take(self, ticket: Ticket, size: int) -> bool:
        room = self._room(ticket, size)
        block = self.arena.take(size + ticket.call.rows * room)
        if block is None:
            return False
        ticket.block = block
        ticket.replies = block + size
        ticket.room = room
        return True

    @staticmethod
    def _room(ticket: Ticket, size: int) -> int:
        return ticket.tensors.room(-(-size // ticket.call.rows))

    @staticmethod
    def bytes_of(given: Sequence[Tensor]) -> int:
        return sum(aligned(len(tensor.data)) for tensor in given)

    def needed(self, ticket: Ticket, inputs: int) -> int:
        """Return the bytes for inputs of this many bytes and the answer to them."""
        return inputs + ticket.call.rows * self._room(ticket, inputs)

    def outputs(self, ticket: Ticket) -> list[Tensor]:
        """Return views on the answer; rows are joined where there are several."""
        rows = [self._row(ticket, row) for row in range(ticket.call.rows)]
        return rows[0] if len(rows) == 1 else [_joined(column) for column in zip(*rows, strict=True)]

    def settle(self, ticket: Ticket) -> None:
        """Give the block back if nobody needs it any more."""
        if ticket.released and ticket.block >= 0:
            block = ticket.block
            ticket.block = -1
            self.arena.give_back(block)

    def _write(self, at: int, given: Iterable[Tensor]) -> None:
        view = self.memory.view
        for tensor in given:
            size = len(tensor.data)
            view[at : at + size] = tensor.data
            gap = aligned(size) - size
            view[at + size : at + size + gap] = bytes(gap)  # equal inputs are equal blocks: see `Quarantine`
            at += aligned(size)

    def _row(self, ticket: Ticket, row: int) -> list[Tensor]:
        specs = ticket.tensors.outputs
        shapes = ticket.reply_shapes[row] or arena.whole_shapes(specs, 1)
        at = ticket.replies + row * ticket.room
        return list(arena.tensors_at(self.memory.view, at, specs, shapes))


def _joined(rows: Sequence[Tensor]) -> Tensor:
    first = rows[0]
    if any(row.shape != first.shape for row in rows):
        raise ValueError(f"output {first.name}: the rows of one call have answers of unequal shapes")
    data = b"".join(row.data for row in rows)
    return Tensor(first.name, first.datatype, (len(rows), *first.shape[1:]), data)
