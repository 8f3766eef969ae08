"""The gRPC server serves the gRPC front, inside an event loop that is already running.

The native network reads plain calls in threads of its own; others go the long way, through here. A call that
goes the long way keeps its stream: its thread passes on the messages, the methods answer that grpc.aio would
call, and what they say goes back to the thread. Without the native network, grpc.aio serves all calls.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from asyncio import to_thread
from collections.abc import AsyncIterator, Mapping
from time import monotonic_ns
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

import grpc

from astrarium.core.errors import InputError
from astrarium.core.optional import extension
from astrarium.core.quantities import SECOND, Time
from astrarium.server.contract import NativeFront, Service
from astrarium.server.grpc.front import GrpcFront
from astrarium.server.native import HIGH_WATER, NativeThreads, listeners_at
from astrarium.server.settings import Address, HttpLimits, Keys, Security

if TYPE_CHECKING:
    from astrarium._front import Grpc

POLL = 0.01
SMALL = 256  # compressed bytes: they become a thousand times as many at most, in some .1 ms
_WINDOW_BITS = {b"gzip": 31, b"deflate": 15}
log = logging.getLogger(__name__)
# Why network threads leave connections, as in http2_connection.h and grpc_thread.h.
_PROTOCOL = ("protocol", "flow_control", "stream_closed", "frame_size", "compression", "not_http2")
_LIMITS = ("resets", "metadata", "head", "memory", "slow", "takes_nothing", "no_greeting")
_LEFT = (*_PROTOCOL, *_LIMITS)
Trailing = tuple[tuple[str, str], ...]
Message = tuple[bytes, bool]  # and whether it is compressed


class Status(Exception):
    """A status is how a call ends that the methods never heard of."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        self.code = code
        self.details = details
        super().__init__(details)


class NativeContext:
    """A native context is as much of a grpc.aio.ServicerContext as the methods use."""

    def __init__(self, metadata: bytes, peer: str, why: str, received: Time, patience: Time) -> None:
        words = metadata.decode("latin-1").split("\0")
        self._metadata = list(zip(words[::2], words[1::2], strict=False))
        self._peer = peer
        self.long_way = why
        self._end = received + patience if patience else None
        self.code = grpc.StatusCode.OK
        self.details = ""
        self.trailing: Trailing = ()

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return self._metadata

    def said(self, name: str) -> str:
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
        encoding = self.context.said("grpc-encoding").encode()
        if encoding not in _WINDOW_BITS:
            told = f"grpc-encoding: expected gzip or deflate (got {encoding.decode()!r})"
            raise Status(grpc.StatusCode.UNIMPLEMENTED, told)
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
        found = reader.decompress(data, limit + 1)
    except zlib.error as error:
        raise Status(grpc.StatusCode.INTERNAL, f"the message cannot be decompressed: {error}") from None
    if len(found) > limit:
        raise Status(grpc.StatusCode.RESOURCE_EXHAUSTED, "Decompressed message larger than max")
    if not reader.eof:
        raise Status(grpc.StatusCode.INTERNAL, "the message cannot be decompressed: it is incomplete")
    return found


class NativeGrpc(NativeThreads):
    """The native network serves gRPC on *address*, with as many threads as the front has for HTTP."""

    def __init__(
        self,
        module: Any,
        native_front: NativeFront,
        front: GrpcFront,
        address: Address,
        limits: HttpLimits,
        security: Security,
        message_bytes: int,
    ) -> None:
        listeners = listeners_at(address, native_front.threads)
        self.host, self.port = listeners[0].getsockname()[:2]
        self.native: Grpc = module.Grpc(
            exchange=native_front.exchange,
            listeners=[listener.fileno() for listener in listeners],
            first=native_front.threads,
            head_bytes=limits.head_bytes,
            body_bytes=limits.body_bytes,
            message_bytes=message_bytes,
            held_bytes=limits.held_bytes,
            request_ns=round(limits.request_seconds * SECOND),
            keep_alive_ns=limits.keep_alive_seconds * SECOND,
            keys=list(security.keys),
        )
        for listener in listeners:
            listener.close()  # the network has descriptors of its own
        super().__init__(self.native, native_front)
        self._module = module
        self._limit = message_bytes
        self._methods = front.handler()
        self._loop = asyncio.get_running_loop()
        self._calls: dict[tuple[int, int], NativeCall] = {}
        self.look()
        self._loop.add_reader(self.native.fd(), self._hear)
        self.native.start()

    async def stop(self, grace: float) -> None:
        """Take no more calls; those under way get *grace* seconds to be answered."""
        self.native.drain()
        end = self._loop.time() + grace
        while self.native.connections() and self._loop.time() < end:
            await asyncio.sleep(POLL)
        await to_thread(self.native.stop)
        while self._hear():
            pass
        self._loop.remove_reader(self.native.fd())

    def left(self) -> Mapping[str, int]:
        return dict.fromkeys(_LEFT, 0) | self.native.left()  # a rate needs a zero to start from

    def kept(self) -> int:
        return super().kept() + self.native.heads()

    def _hear(self) -> int:
        """Begin with the first calls that wait, and tell others what happened; return how many those were."""
        self.look_again()
        passed = self.native.passed()
        for kind, number, message, streams, about in passed:
            if kind == self._module.CALL:
                self._begin(number, about, None if streams else message)
            elif (call := self._calls.get(number)) is not None:
                self._happened(call, kind, message)
        return len(passed)

    def _begin(self, number: tuple[int, int], about: Any, message: Message | None) -> None:
        call = self._calls[number] = NativeCall(self.native, number, NativeContext(*about), self._limit)
        call.task = self._loop.create_task(self._serve(call, message))
        call.task.add_done_callback(lambda _: self._end(number, len(about[0])))

    def _end(self, number: tuple[int, int], metadata: int) -> None:
        del self._calls[number]
        self.native.forgotten(metadata)

    def _happened(self, call: NativeCall, kind: int, message: Message) -> None:
        if kind == self._module.MESSAGE:
            call.heard(message)
        elif kind == self._module.CALL_END:
            call.heard(None)
        elif kind == self._module.CALL_SENT:
            call.sent()
        elif kind == self._module.LEFT:
            call.task.cancel()

    async def _serve(self, call: NativeCall, message: Message | None) -> None:
        context = call.context
        try:
            remaining = context.time_remaining()
            if remaining is not None and remaining <= 0:
                raise TimeoutError  # also where the answer would come without waiting for anything
            async with asyncio.timeout(remaining):
                await self._answer(call, message)
            call.finish(context.code, context.details, context.trailing)
        except grpc.aio.AbortError:
            call.finish(context.code, context.details, context.trailing)
        except Status as status:
            call.finish(status.code, status.details)
        except TimeoutError:
            call.finish(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
        except Exception as error:
            log.exception("a call failed")
            call.finish(grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}")

    async def _answer(self, call: NativeCall, message: Message | None) -> None:
        asked = SimpleNamespace(method=call.context.said(":path"), invocation_metadata=())
        method = self._methods.service(asked)
        if method is None:
            raise Status(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        if message is None:
            async for response in method.stream_stream(call.messages(), call.context):
                await call.answer(method.response_serializer(response))
            return
        data, compressed = message
        response = await method.unary_unary(await call.plain(data) if compressed else data, call.context)
        call.send(method.response_serializer(response))


_ENVELOPE = 64 * 1024  # bytes of a message beside its tensors
_NO_LIMIT = -1
# at once, in all and on a connection, as in grpc_thread.h
_MOST_CALLS = 1 << 14
_MOST_STREAMS = 1024


class RunningGrpc:
    """A running gRPC server answers on `host` and `port` until it is stopped."""

    def __init__(self, server: Any, host: str, port: int) -> None:
        self._server = server
        self.host = host
        self.port = port

    async def stop(self, grace: float) -> None:
        """Take no more calls; those under way get *grace* seconds to be answered."""
        await self._server.stop(grace)


async def serve_grpc(
    service: Service,
    address: Address | None = None,
    limits: HttpLimits | None = None,
    security: Security | None = None,
    native_front: NativeFront | None = None,
) -> RunningGrpc | NativeGrpc:
    """Serve gRPC; return once it listens. With a *native_front* network threads serve the connections."""
    address = address or Address()
    limits = limits or HttpLimits()
    security = security or Security()
    front = GrpcFront(service, limits, Keys(security.keys))
    if native_front is not None:
        given = native_front, front, address, limits, security, limits.body_bytes + _ENVELOPE
        return NativeGrpc(extension("_front"), *given)
    server = grpc.aio.server(options=_options(limits), maximum_concurrent_rpcs=_MOST_CALLS)
    server.add_generic_rpc_handlers((front.handler(),))
    port = _bound(server, address, security)
    await server.start()
    return RunningGrpc(server, address.host, port)


def _options(limits: HttpLimits) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", limits.body_bytes + _ENVELOPE),
        ("grpc.max_send_message_length", _NO_LIMIT),
        ("grpc.max_concurrent_streams", _MOST_STREAMS),
        ("grpc.max_metadata_size", limits.head_bytes),
        ("grpc.absolute_max_metadata_size", limits.head_bytes),
        ("grpc.so_reuseport", 0),  # a port that is taken is an error, not shared
    ]


def _bound(server: Any, address: Address, security: Security) -> int:
    host = f"[{address.host}]" if ":" in address.host else address.host
    where = f"{host}:{address.port}"
    credentials = _credentials(security)
    try:
        if credentials is None:
            port = server.add_insecure_port(where)
        else:
            port = server.add_secure_port(where, credentials)
    except RuntimeError as error:
        raise InputError("address", where, f"one that is free here: {error}") from None
    return int(port)


def _credentials(security: Security) -> Any:
    if security.certificate is None:
        return None
    key = security.private_key or security.certificate
    try:
        pair = (key.read_bytes(), security.certificate.read_bytes())
    except OSError as error:
        files = f"{security.certificate}, {security.private_key}"
        raise InputError("certificate and private key", files, f"PEM files: {error}") from None
    return grpc.ssl_server_credentials([pair])
