"""What happens on a connection before there is a request: its arrival is timed, and bounded."""

from __future__ import annotations

from asyncio import TimerHandle
from time import monotonic_ns

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from astrarium.server.http.routing import LONG_WAY, RECEIVED
from astrarium.server.settings import HttpLimits
from astrarium.server.wire import ErrorAnswer


class BoundedProtocol(HttpToolsProtocol):
    """Notes when a request's first byte came (its own task may start much later). A request whose head is too
    long, or which is not whole in time, is refused: a client cannot hold memory or a connection for ever."""

    limits = HttpLimits()
    long_way = ""  # why requests go this way and not the short one
    _arriving, _in_head, _head_bytes = False, False, 0
    _deadline: TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._arriving:
            self._part_received(len(data))
        elif self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _part_received(self, size: int) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.limits.request_seconds, self._too_slow)
        self._head_bytes += size if self._in_head else 0
        if self._head_bytes > self.limits.head_bytes:
            self.refuse(431, f"head: expected at most {self.limits.head_bytes} bytes")

    def _too_slow(self) -> None:
        self.refuse(408, f"request: expected whole within {self.limits.request_seconds} s")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[RECEIVED] = monotonic_ns()  # type: ignore[literal-required]
        self.scope[LONG_WAY] = self.long_way  # type: ignore[literal-required]
        self._arriving, self._in_head, self._head_bytes = True, True, 0

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._arriving = False
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        self.refuse(400, msg)

    def refuse(self, status: int, reason: str) -> None:
        """The last answer on this connection, where no request has got as far as the application."""
        if self.transport.is_closing():
            return
        body = msgspec.json.encode(ErrorAnswer(reason))
        head = STATUS_LINE[status] + b"content-type: application/json\r\nconnection: close\r\n"
        self.transport.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        self.transport.close()


def bounded_protocol(limits: HttpLimits, long_way: str = "") -> type[BoundedProtocol]:
    return type("BoundedProtocol", (BoundedProtocol,), {"limits": limits, "long_way": long_way})
