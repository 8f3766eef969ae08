"""Messages between the server and a worker carry ids, offsets and times, never a tensor.

Messages are MessagePack arrays, one to a packet. Times are of the machine's monotonic clock.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from astrarium.core.units import Time

LARGEST_MESSAGE = 1 << 18


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    pass


Shapes: TypeAlias = list[tuple[tuple[int, ...], int]]  # of each tensor: shape and bytes


class BatchMember(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A member is one item of a batch: row *row* of the *rows* in a block; `room` bytes at `reply` await it.

    Tensors lie one after the other, aligned, in the order of the model's inputs; `shapes` is left out where
    the model's own say it all.
    """

    block: int
    rows: int
    row: int
    reply: int
    room: int
    application: int = 0
    shapes: Shapes | None = None


class LoadModel(Message, frozen=True):
    """*files* is a `ModelFiles` as plain data; a model of that number that is there already is replaced."""

    model: int
    files: dict[str, Any]
    sizes: list[int]  # batches to warm up with


class UnloadModel(Message, frozen=True):
    model: int


class RunBatch(Message, frozen=True):
    run: int
    model: int
    members: list[BatchMember]
    start: Time = 0  # not before


class CancelBatch(Message, frozen=True):
    """Stop a batch if it runs, skip it if it waits; the GPU recovers for *recovery*."""

    run: int
    recovery: Time = 0


class Ping(Message, frozen=True):
    sent: Time


class Stop(Message, frozen=True):
    """Stop the worker once the batches already sent are done."""


Order: TypeAlias = LoadModel | UnloadModel | RunBatch | CancelBatch | Ping | Stop


class WorkerUp(Message, frozen=True):
    pid: int


class ModelLoaded(Message, frozen=True):
    """A model was loaded, with inputs and outputs as (name, datatype, shape of one item)."""

    model: int
    inputs: list[tuple[str, str, tuple[int, ...]]]
    outputs: list[tuple[str, str, tuple[int, ...]]]


class ModelRefused(Message, frozen=True):
    """A model could not be loaded."""

    model: int
    error: str


class ModelUnloaded(Message, frozen=True):
    model: int


class BatchDone(Message, frozen=True):
    """A batch is done; its answers lie in the members' reply rooms.

    `shapes` are by member, left out where the model's own say it all; `own_times` is what each would have
    taken alone, where the backend knows.
    """

    run: int
    received: Time
    started: Time
    computing: Time  # inputs gathered
    computed: Time
    finished: Time
    shapes: list[Shapes] | None = None
    own_times: list[Time] = []


class BatchBroken(Message, frozen=True):
    run: int
    started: Time
    finished: Time
    error: str


class BatchCancelled(Message, frozen=True):
    run: int
    started: Time
    stopped: Time


class Pong(Message, frozen=True):
    sent: Time
    received: Time


News: TypeAlias = (
    WorkerUp | ModelLoaded | ModelRefused | ModelUnloaded | BatchDone | BatchBroken | BatchCancelled | Pong
)

_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode
decode_order = msgspec.msgpack.Decoder(Order).decode
decode_news = msgspec.msgpack.Decoder(News).decode
