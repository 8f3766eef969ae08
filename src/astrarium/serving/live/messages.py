"""Messages between the server and a worker carry ids, offsets and times, never a tensor.

Messages are MessagePack arrays, one to a packet: the name of the class, then its fields. Times are of the
machine's monotonic clock.

The members of a batch travel packed, as one bytes object, which native code writes and reads as well: for
each member a row of six little-endian 64-bit integers (48 bytes), the fields of `BatchMember` in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from struct import Struct, pack
from typing import Any, NamedTuple, TypeAlias
from zlib import crc32

import msgspec

from astrarium.core.quantities import Time
from astrarium.serving.live.backends.contract import ModelFiles
from astrarium.serving.live.tensors import TensorSpec

LARGEST_MESSAGE = 1 << 18


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    pass


Shapes: TypeAlias = list[tuple[tuple[int, ...], int]]  # of each tensor: shape and bytes


class BatchMember(NamedTuple):
    """A member is one item of a batch: row *row* of the *rows* in a block.

    At most `reply_bytes` of its reply are written at `reply`.

    Tensors lie one after the other, aligned, in the order of the model's inputs.
    """

    block: int
    rows: int
    row: int
    reply: int
    reply_bytes: int
    application: int = 0


_MEMBER = Struct("<6q")
MEMBER_BYTES = _MEMBER.size


def packed(members: Sequence[Sequence[int]]) -> bytes:
    """Return members as a message carries them."""
    return pack(f"<{6 * len(members)}q", *chain.from_iterable(members))


def unpacked(members: bytes) -> list[BatchMember]:
    """Return members one by one: the inverse of `packed`."""
    if len(members) % MEMBER_BYTES:
        raise ValueError(f"members: expected rows of {MEMBER_BYTES} bytes, got {len(members)} bytes")
    return list(map(BatchMember._make, _MEMBER.iter_unpack(members)))


class LoadModel(Message, frozen=True):
    """*files* are `plain_files`; a model of that number that is there already is replaced.

    Calls may wait that were read for the inputs and outputs that it is served with: *tensors* is their
    `fingerprint`, and a model with others is refused.
    """

    model: int
    files: dict[str, Any]
    sizes: list[int]  # batches to warm up with
    tensors: int = 0  # 0: it is not served yet


def fingerprint(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
    """Return a number that two models share if, and hardly ever unless, they have the same tensors."""
    return crc32(msgspec.msgpack.encode((tuple(inputs), tuple(outputs)))) or 1


def plain_files(files: ModelFiles) -> dict[str, Any]:
    """Return a model's description as a message can carry it."""
    plain: dict[str, Any] = msgspec.to_builtins(files, enc_hook=str)
    return plain


def files_from(plain: dict[str, Any]) -> ModelFiles:
    """Return a model's description from a message: the inverse of `plain_files`."""
    return msgspec.convert(plain, ModelFiles, dec_hook=lambda kind, value: kind(value))  # of its path


class UnloadModel(Message, frozen=True):
    """Unload a model; *moves*: other workers of the same GPU load it as it is."""

    model: int
    moves: bool = False


class RunBatch(Message, frozen=True):
    """Run a batch of `packed` members; what a worker says of it repeats its *tag*.

    `shapes` are those of each member's inputs, and None for a member whose model leaves nothing open; they
    are left out where that is so of all.
    """

    tag: int
    model: int
    members: bytes
    start: Time = 0  # not before
    shapes: list[Shapes | None] | None = None

    @property
    def size(self) -> int:
        return len(self.members) // MEMBER_BYTES


class CancelBatch(Message, frozen=True):
    """Stop a batch if it runs, skip it if it waits; the GPU recovers for *recovery*."""

    tag: int
    recovery: Time = 0


class Ping(Message, frozen=True):
    sent: Time


class Stop(Message, frozen=True):
    """Stop the worker once the batches already sent are done."""


Order: TypeAlias = LoadModel | UnloadModel | RunBatch | CancelBatch | Ping | Stop


class WorkerUp(Message, frozen=True):
    pid: int


class WorkerBroken(Message, frozen=True):
    """A worker cannot go on, since it ran the batch of this tag (-1: none), and ends itself."""

    tag: int
    error: str


class ModelLoading(Message, frozen=True):
    """A worker begins to load a model, which is to blame if the worker dies before its next word of it."""

    model: int


class ModelLoaded(Message, frozen=True):
    """A model was loaded, and has these inputs and outputs.

    `lead` is how long inputs take to reach the GPU, beside what it computes: those of one item, and of each
    further one. `notes` are what the backend found out by itself and people should know; `warnings` are what
    they should change. `weights` are bytes, where somebody knows. A model that is `partial` serves already,
    but some of its batches take longer than they will once it is `ModelComplete`. `inputs` are those that
    clients send. `padding` is "safe" where unequal items may be padded, and "changes" where that would change
    answers (`padding_reason`; `padding_advice` is what people can do), so that the worker runs equal ones
    only; it is empty where nothing is open.
    """

    model: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    lead: tuple[Time, Time] = (0, 0)
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    weights: int = 0
    partial: bool = False
    phases: dict[str, Time] = {}  # what loading it consisted of
    padding: str = ""
    padding_reason: str = ""
    padding_advice: str = ""


class ModelComplete(Message, frozen=True):
    """A model that was loaded in part is whole, from *at* on."""

    model: int
    at: Time
    phases: dict[str, Time] = {}


class ModelRefused(Message, frozen=True):
    """A model could not be loaded."""

    model: int
    error: str


class ModelUnloaded(Message, frozen=True):
    model: int


class BatchesSlow(Message, frozen=True):
    """So many more batches of a model took longer than they need.

    `split` ones were run in parts, since padding would have changed answers; `beside_graphs` are batches, or
    parts of one, that no graph of the model could run.
    """

    model: int
    split: int
    beside_graphs: int


ModelNews: TypeAlias = ModelLoaded | ModelComplete | ModelRefused | ModelUnloaded | BatchesSlow


class BatchDone(Message, frozen=True):
    """A batch is done; its answers lie in the members' reply buffers.

    `shapes` are by member, left out where the model's own say it all; `own_times` is what each would have
    taken alone, where the backend knows.
    """

    tag: int
    received: Time
    started: Time
    computing: Time  # inputs gathered
    computed: Time
    finished: Time
    shapes: list[Shapes] | None = None
    own_times: list[Time] = []


class BatchBroken(Message, frozen=True):
    tag: int
    started: Time
    finished: Time
    error: str


class BatchCancelled(Message, frozen=True):
    tag: int
    started: Time
    stopped: Time


class Pong(Message, frozen=True):
    sent: Time
    received: Time
    heard: Time = 0  # when it came back, where native code has noted that


News: TypeAlias = (
    WorkerUp | WorkerBroken | ModelLoading | ModelNews | BatchDone | BatchBroken | BatchCancelled | Pong
)

_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode
decode_order = msgspec.msgpack.Decoder(Order).decode
decode_news = msgspec.msgpack.Decoder(News).decode
