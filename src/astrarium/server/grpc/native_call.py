"""A call that goes the long way: a stream of a network thread whose messages Python reads and writes."""

from __future__ import annotations

import asyncio
import zlib
from asyncio import to_thread
from collections.abc import AsyncIterator
from time import monotonic_ns
from typing import TYPE_CHECKING, NoReturn

import grpc

from astrarium.core.quantities import SECOND, Time
from astrarium.server.protocol.network_threads import HIGH_WATER
from astrarium.server.protocol.regions import UNKNOWN_USER

if TYPE_CHECKING:
    from astrarium._front import Grpc

SMALL = 256  # compressed bytes: they become a thousand times as many at most, in some .1 ms
_WINDOW_BITS = {b"gzip": 31, b"deflate": 15}
Trailing = tuple[tuple[str, str], ...]
Message = tuple[bytes, bool]  # and whether it is compressed


class Status(Exception):
    """Ends a call before its method hears of it: there is no such method, or its message cannot be read."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        self.code = code
        self.details = details
        super().__init__(details)


class NativeContext:
    """It stands for grpc.aio's ServicerContext in calls that network threads read, as far as it is used."""

    def __init__(
        self, metadata: bytes, peer: str, why: str, received: Time, patience: Time, user: int = UNKNOWN_USER
    ) -> None:
        words = metadata.decode("latin-1").split("\0")
        self._metadata = list(zip(words[::2], words[1::2], strict=False))
        self._peer = peer
        self.long_way = why
        self.user = user  # of this machine, as `Regions` has it
        self._end = received + patience if patience else None
        self.code = grpc.StatusCode.OK
        self.details = ""
        self.trailing: Trailing = ()

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return self._metadata

    def metadata_value(self, name: str) -> str:
        return dict(self._metadata).get(name, "")

    def peer(self) -> str:
        return self._peer

    def time_remaining(self) -> float | None:
        return None if self._end is None else (self._end - monotonic_ns()) / SECOND

    def set_trailing_metadata(self, trailing: Trailing) -> None:
        self.trailing = trailing

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing: Trailing = ()) -> NoReturn:
        self.code = code
        self.details = details
        self.trailing = trailing
        raise grpc.aio.AbortError


class NativeCall:
    """A native call is a stream of a network thread whose messages Python reads and writes."""

    def __init__(self, native: Grpc, number: tuple[int, int], context: NativeContext, limit: int) -> None:
        self._native = native
        self._number = number
        self.context = context
        self._limit = limit
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue()  # None: there are no more
        self._unsent = 0  # bytes of which nobody has told that they were sent
        self._sent = asyncio.Event()
        self.task: asyncio.Task[None]

    def heard(self, message: Message | None) -> None:
        self._messages.put_nowait(message)

    async def messages(self) -> AsyncIterator[bytes]:
        while (message := await self._messages.get()) is not None:
            data, compressed = message
            self._native.taken(*self._number, len(data))
            yield await self.plain(data) if compressed else data

    async def plain(self, data: bytes) -> bytes:
        """Return a compressed message as it was before; Status where it cannot be read or is too large."""
        encoding = self.context.metadata_value("grpc-encoding").encode()
        if encoding not in _WINDOW_BITS:
            reason = f"grpc-encoding: expected gzip or deflate (got {encoding.decode()!r})"
            raise Status(grpc.StatusCode.UNIMPLEMENTED, reason)
        reading = data, _WINDOW_BITS[encoding], self._limit
        if len(data) > SMALL:
            return await to_thread(_decompressed, *reading)
        return _decompressed(*reading)

    def send(self, message: bytes) -> None:
        self._native.send(*self._number, message)

    async def answer(self, message: bytes) -> None:
        """Send a message; return at once, or when the client has taken most of what was sent."""
        self.send(message)
        self._unsent += len(message)
        if self._unsent > HIGH_WATER:
            self._sent.clear()
            self._native.tell_when_sent(*self._number)
            await self._sent.wait()

    def sent(self) -> None:
        self._unsent = 0
        self._sent.set()

    def finish(self, code: grpc.StatusCode, details: str, trailing: Trailing = ()) -> None:
        self._native.finish(*self._number, code.value[0], details, list(trailing))


def _decompressed(data: bytes, window_bits: int, limit: int) -> bytes:
    reader = zlib.decompressobj(window_bits)
    try:
        plain = reader.decompress(data, limit + 1)
    except zlib.error as error:
        raise Status(grpc.StatusCode.INTERNAL, f"the message cannot be decompressed: {error}") from None
    if len(plain) > limit:
        raise Status(grpc.StatusCode.RESOURCE_EXHAUSTED, "Decompressed message larger than max")
    if not reader.eof:
        raise Status(grpc.StatusCode.INTERNAL, "the message cannot be decompressed: it is incomplete")
    return plain
