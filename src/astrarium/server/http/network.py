"""The native network reads plain calls in threads of its own; all else goes the long way, through here.

A connection that goes the long way stays with its network thread: that thread passes on the bytes that it
reads, uvicorn's protocol runs on a transport that has no socket, and what it writes goes back to the thread.
Once a request is answered the connection goes the short way again.
"""

from __future__ import annotations

import asyncio
import logging
import os
from asyncio import BaseProtocol, Transport
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, cast

from astrarium.core.quantities import SECOND, Time
from astrarium.server.client_errors import ClientErrors
from astrarium.server.contract import NativeFront
from astrarium.server.http.protocol import BoundedProtocol, last_answer, no_descriptor, too_slow
from astrarium.server.protocol.network_threads import HIGH_WATER, NativeThreads
from astrarium.server.settings import HttpLimits

if TYPE_CHECKING:
    from astrarium._front import Network

log = logging.getLogger(__name__)


class NativeTransport(Transport):
    """A native transport is a connection of a network thread, as a protocol sees it."""

    def __init__(
        self,
        network: Network,
        connection: int,
        protocol: BoundedProtocol,
        peer: tuple[str, int],
        user: int,
    ) -> None:
        super().__init__({"peername": peer} if peer[0] else None)
        self._network = network
        self._connection = connection
        self.user = user  # of this machine, as `Regions` has it
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._written: list[bytes] = []  # in this turn of the loop: it leaves in one piece
        self._unsent = 0  # bytes of which nobody has told that they were sent
        self._closing = self._full = False
        self._reading = True
        self.received = 0  # bytes

    def get_protocol(self) -> BaseProtocol:
        return self._protocol

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        self._read(False)

    def resume_reading(self) -> None:
        self._read(True)

    def _read(self, reading: bool) -> None:
        if self._reading is not reading:
            self._reading = reading
            self._network.pause(self._connection, not reading)

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self._closing or not data:
            return
        if not self._written:
            self._loop.call_soon(self._flush)
        self._written.append(bytes(data))
        self._unsent += len(data)
        if self._unsent > HIGH_WATER and not self._full:
            self._full = True
            self._protocol.pause_writing()

    def _flush(self) -> None:
        if self._written:
            self._network.write(self._connection, self._take_written())

    def _take_written(self) -> bytes:
        """Return what was written, which is on its way from now on."""
        data = b"".join(self._written)
        self._written.clear()
        if self._full:
            self._loop.call_soon(self._network.tell_when_sent, self._connection)
        return data

    def sent(self) -> None:
        """The client has taken all that was written before we asked."""
        self._unsent = sum(map(len, self._written))
        if self._full:
            self._full = False
            self._protocol.resume_writing()

    def get_write_buffer_size(self) -> int:
        return self._unsent

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._flush()
            self._closing = True
            self._network.close(self._connection)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """Close after what was written, once the client has had time to read it."""
        if not self._closing:
            self._flush()
            self._closing = True
            self._network.linger(self._connection)

    def abort(self) -> None:
        self._closing = True
        self._network.abort(self._connection)

    def lost(self) -> None:
        self._closing = True

    def give_back(self) -> None:
        """Let the next request go the short way, unless bytes of it are on their way to us already."""
        self._network.take_back(self._connection, self.received, self._take_written())


class NativeProtocol(BoundedProtocol):
    """A native protocol answers requests that go the long way on a connection of a network thread."""

    _passed: Time = 0

    def passed(self, data: bytes, why: str, received: Time) -> None:
        """Take bytes that were *received* then; *why* is said with the first ones after the short way."""
        self.long_way = why or self.long_way
        self._passed = received
        cast(NativeTransport, self.transport).received += len(data)
        self.data_received(data)
        self._give_back()

    def _now(self) -> Time:
        return self._passed

    def _user(self) -> int:
        return cast(NativeTransport, self.transport).user

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._give_back()

    def _give_back(self) -> None:
        if not self._open and not self._framing.arriving and not self.transport.is_closing():
            self._unset_keepalive_if_required()  # the network thread closes idle connections
            cast(NativeTransport, self.transport).give_back()


class AllConnections(set[Any]):
    """All connections: those that uvicorn knows are in here, but it is as large as the network's are many."""

    count: Callable[[], int]

    def __len__(self) -> int:
        return self.count()


class NativeNetwork(NativeThreads):
    """The native network serves HTTP on *listeners*, one of them for each of its threads.

    More of what its threads count is to be had from `native`.
    """

    def __init__(
        self,
        native: Any,
        front: NativeFront,
        listeners: Iterable[int],
        limits: HttpLimits,
        keys: Iterable[str],
    ) -> None:
        self._module = native
        self.native: Network = native.Network(
            exchange=front.exchange,
            listeners=list(listeners),
            head_bytes=limits.head_bytes,
            body_bytes=limits.body_bytes,
            held_bytes=limits.held_bytes,
            request_ns=round(limits.request_seconds * SECOND),
            keep_alive_ns=limits.keep_alive_seconds * SECOND,
            connections=limits.connections or 0,
            keys=list(keys),
            too_slow=last_answer(too_slow(limits)),
            no_descriptor=last_answer(no_descriptor()),
        )
        super().__init__(self.native, front)
        self._loop = asyncio.get_running_loop()
        self._protocols: dict[int, NativeProtocol] = {}
        self._new_protocol: Callable[[], NativeProtocol]
        self.connections = AllConnections()
        self.connections.count = self.native.connections

    def start(self, new_protocol: Callable[[], NativeProtocol]) -> None:
        self._new_protocol = new_protocol
        self.look()
        self._loop.add_reader(self.native.fd(), self._hear)
        self.native.start()

    def drain(self) -> None:
        """Take no more connections, and close each one after its last answer."""
        self.native.drain()

    async def stop(self) -> None:
        """Stop, whatever is under way."""
        await asyncio.to_thread(self.native.stop)
        self._hear()
        self._loop.remove_reader(self.native.fd())

    def _hear(self) -> None:
        self.look_again()
        for kind, connection, data, why, received, error, peer, user in self.native.passed():
            protocol = self._protocols.get(connection) or self._connected(connection, peer, user)
            try:
                self._happened(protocol, kind, data, why, received)
            except Exception:
                log.exception("a connection failed")
                protocol.transport.abort()
            if kind == self._module.LOST:
                self._lost(connection, error)

    def _connected(self, connection: int, peer: tuple[str, int], user: int) -> NativeProtocol:
        protocol = self._protocols[connection] = self._new_protocol()
        protocol.connection_made(NativeTransport(self.native, connection, protocol, peer, user))
        return protocol

    def _happened(self, protocol: NativeProtocol, kind: int, data: bytes, why: str, received: Time) -> None:
        transport = cast(NativeTransport, protocol.transport)
        if kind == self._module.DATA and not transport.is_closing():
            protocol.passed(data, why, received)
        elif kind == self._module.SENT:
            transport.sent()
        elif kind == self._module.END and not transport.is_closing():
            protocol.eof_received()

    def _lost(self, connection: int, error: int) -> None:
        protocol = self._protocols.pop(connection)
        cast(NativeTransport, protocol.transport).lost()
        protocol.connection_lost(OSError(error, os.strerror(error)) if error else None)


def native_protocol(limits: HttpLimits, errors: ClientErrors | None = None) -> type[NativeProtocol]:
    attributes = {"limits": limits, "errors": errors or ClientErrors()}
    return type("NativeProtocol", (NativeProtocol,), attributes)
