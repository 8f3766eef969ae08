"""The native network passes on the calls that go the long way, and Python answers them."""

from __future__ import annotations

import asyncio
import logging
from asyncio import to_thread
from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import grpc

from astrarium.core.quantities import SECOND
from astrarium.server.contract import NativeFront
from astrarium.server.grpc.front import GrpcFront
from astrarium.server.grpc.native_call import Message, NativeCall, NativeContext, Status
from astrarium.server.protocol.listeners import listeners_at
from astrarium.server.protocol.network_threads import NativeThreads
from astrarium.server.settings import Address, HttpLimits, Security

if TYPE_CHECKING:
    from astrarium._front import Grpc

log = logging.getLogger(__name__)
POLL = 0.01
# Why network threads leave connections, as in http2_connection.h and grpc_thread.h.
_PROTOCOL = ("protocol", "flow_control", "stream_closed", "frame_size", "compression", "not_http2")
_LIMITS = ("resets", "metadata", "head", "memory", "slow", "takes_nothing", "no_greeting")
_LEFT = (*_PROTOCOL, *_LIMITS)


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
        details = SimpleNamespace(method=call.context.metadata_value(":path"), invocation_metadata=())
        method = self._methods.service(details)
        if method is None:
            raise Status(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        if message is None:
            async for response in method.stream_stream(call.messages(), call.context):
                await call.answer(method.response_serializer(response))
            return
        data, compressed = message
        response = await method.unary_unary(await call.plain(data) if compressed else data, call.context)
        call.send(method.response_serializer(response))
