"""A ticket is a client's call while it is served; its tensors lie in the tensor store's shared memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple, Protocol

from astrarium.core.quantities import Time
from astrarium.server.contract import InferCall, Kind
from astrarium.serving.ledger import Outcome
from astrarium.serving.live import layout
from astrarium.serving.live.layout import aligned
from astrarium.serving.live.messages import Shapes
from astrarium.serving.live.numbering import Numbering, numbering
from astrarium.serving.live.tensors import TensorSpec

LEAST_REPLY = 1 << 14  # bytes for an answer whose size nobody knows beforehand


@dataclass(frozen=True)
class Tensors:
    """A model's tensors are its inputs and outputs, with their bytes where no dimension is open.

    The shapes of items with several open dimensions are numbered by *sizes*, if there are any.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    sizes: tuple[tuple[int, ...], ...] = ()
    numbering: Numbering | None = field(init=False)
    fixed_inputs: bool = field(init=False)
    reply_bytes: int | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fixed_inputs", layout.fixed_bytes(self.inputs) is not None)
        object.__setattr__(self, "reply_bytes", layout.fixed_bytes(self.outputs))
        object.__setattr__(self, "numbering", numbering(self.inputs, self.sizes))

    def length_of(self, shapes: Shapes | None) -> int:
        """Return how long each row of a call is: as its longest input is; 0 where no dimension is open.

        Where shapes are numbered, the number of theirs is their length.
        """
        if shapes is None:
            return 0
        if self.numbering is not None:
            return self.numbering.number([shape for shape, _ in shapes])
        pairs = zip(self.inputs, shapes, strict=True)
        return max((_length(spec, shape) for spec, (shape, _) in pairs), default=0)

    def bytes_of_reply(self, input_bytes: int) -> int:
        """Return the bytes for the answer to one item: as much as its input where its size is not known."""
        if self.reply_bytes is not None:
            return self.reply_bytes
        return aligned(max(input_bytes, LEAST_REPLY))


def _length(spec: TensorSpec, shape: tuple[int, ...]) -> int:
    sizes = [shape[1 + place] for place in spec.open_dimensions]
    return prod(sizes) if sizes else 0


class Waiter(Protocol):
    """A waiter is told that a call has ended: a future, or something like it."""

    def done(self) -> bool: ...
    def set_result(self, result: None, /) -> None: ...


class EndedBatch(NamedTuple):
    """What comes back from the native scheduler with a call, of the batch that carried its last row."""

    tag: int
    gpu: int
    size: int
    dispatched: Time
    planned_end: Time
    started: Time
    finished: Time


class KeptGpu(NamedTuple):
    """For how long a batch that ended well *kept* others from its GPU."""

    finished: Time
    size: int
    kept: Time
    bucket: int = 0  # of the lengths of its requests; -1: of several


@dataclass(slots=True, eq=False)
class Ticket:
    """A ticket has ended when all rows of its call have.

    No worker writes into its block any more by then; that is given back once the client has its answer.
    """

    call: InferCall
    model: int
    tensors: Tensors
    application: int
    deadline: Time
    answer: Waiter
    weight: int = 0  # among the open calls of its model, as the admission was told
    reply_shapes: list[Shapes | None] = field(init=False)  # by row; None or empty: the model's own
    block: int = -1  # -1: no memory yet, or none any more
    shapes: Shapes | None = None  # of the inputs; None: the model's own
    replies: int = 0  # where the first reply begins
    reply_bytes: int = 0  # kept for the reply to each row
    admitted: Time = 0
    outcome: Outcome = Outcome.OPEN
    cause: str = ""  # one of a few words: what metrics count
    reason: str = ""  # what the client is told
    batch: EndedBatch | None = None  # the last one that carried a row to its end
    released: bool = False
    retried: bool = False
    trial: bool = False  # a made-up call of our own, to find out whether its model works again
    inputs_ready: bool = True
    expired: bool = False  # while it waited for its inputs, and so it has none
    broken: str = ""  # what went wrong while its inputs were made
    blamed: Kind = Kind.MODEL_FAILED  # whose fault that is

    def __post_init__(self) -> None:
        self.reply_shapes = [None] * self.call.rows

    @property
    def objective(self) -> Time:
        return self.deadline - self.call.received
