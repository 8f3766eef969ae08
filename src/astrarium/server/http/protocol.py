"""The connection's protocol times and bounds the arrival of a request."""

from __future__ import annotations

import re
import sys
from asyncio import TimerHandle
from time import monotonic_ns
from typing import NamedTuple

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from astrarium.server.http.routing import LONG_WAY, RECEIVED
from astrarium.server.settings import HttpLimits
from astrarium.server.wire import ErrorAnswer

_AROUND_A_HEADER = 4  # bytes: a colon, a space and the end of the line

# An offer to upgrade is nothing to us, and an end of the request to the parser: it would never see the body.
_UPGRADE = re.compile(rb"\A((?:[^\r\n]+\r\n)+?)upgrade:", re.IGNORECASE)


class _HeadTooLarge(Exception):
    """Ends the parser's work on a head."""


class Refusal(NamedTuple):
    status: int
    reason: str


class BoundedProtocol(HttpToolsProtocol):
    """A bounded protocol refuses a request whose head is too long, or which is not whole in time.

    So a client cannot hold memory or a connection for ever. It notes when a request's first byte came: the
    request's own task may start much later.
    """

    limits = HttpLimits()
    long_way = ""  # why requests go this way and not the short one
    _arriving, _in_head, _head_bytes, _received = False, False, 0, 0
    _deadline: TimerHandle | None = None
    _open = 0  # requests with a whole head and no answer
    _last_words: Refusal | None = None  # what is sent before the connection is closed

    def data_received(self, data: bytes) -> None:
        if self._last_words is not None:
            return  # after what was no request, nobody knows where the next one begins
        super().data_received(data if self._arriving else _UPGRADE.sub(rb"\1x-upgrade:", data))
        if self._arriving:
            self._part_received(len(data))
        elif self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _part_received(self, size: int) -> None:
        if self._deadline is None:
            late = too_slow(self.limits)
            self._deadline = self.loop.call_later(self.limits.request_seconds, self.refuse, *late)
        self._received += size if self._in_head else 0  # a line that never ends is in no header yet
        if self._received > self.limits.head_bytes:
            self.refuse(*self._head_too_large())

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[RECEIVED] = monotonic_ns()  # type: ignore[literal-required]
        self.scope[LONG_WAY] = self.long_way  # type: ignore[literal-required]
        self._arriving, self._in_head, self._head_bytes, self._received = True, True, 0, 0

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._count_head(len(name) + len(value) + _AROUND_A_HEADER)

    def _count_head(self, size: int) -> None:
        """Count the bytes of a head, which may come in one piece or in several."""
        self._head_bytes += size
        if self._head_bytes > self.limits.head_bytes or len(self.headers) > self.limits.headers:
            raise _HeadTooLarge  # reaches `send_400_response`

    def _head_too_large(self) -> Refusal:
        limits = self.limits
        return Refusal(431, f"head: expected at most {limits.head_bytes} bytes and {limits.headers} headers")

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._in_head = False
        self._open += 1

    def on_response_complete(self) -> None:
        self._open -= 1
        super().on_response_complete()
        if self._last_words is not None and not self._open:
            self._close_with(self._last_words)

    def on_message_complete(self) -> None:
        self._arriving = False
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        error = sys.exception()
        too_large = error is not None and isinstance(error.__context__, _HeadTooLarge)
        self.refuse(*(self._head_too_large() if too_large else Refusal(400, msg)))

    def refuse(self, status: int, reason: str) -> None:
        """Send the last answer on this connection; requests that came whole before are answered first."""
        if self.transport.is_closing() or self._last_words is not None:
            return
        self._last_words = Refusal(status, reason)
        if self._arriving and not self._in_head and not self.cycle.response_complete:
            self._open -= 1  # what is refused got as far as the application, which waits for the rest
            if self.pipeline:
                self.pipeline.popleft()
        if not self._open:
            self._close_with(self._last_words)

    def _close_with(self, refusal: Refusal) -> None:
        if self.transport.is_closing():
            return
        self.transport.write(last_answer(refusal))
        self.transport.close()


def too_slow(limits: HttpLimits) -> Refusal:
    return Refusal(408, f"request: expected whole within {limits.request_seconds} s")


def last_answer(refusal: Refusal) -> bytes:
    """Return an answer after which the connection is closed."""
    body = msgspec.json.encode(ErrorAnswer(refusal.reason))
    head = STATUS_LINE[refusal.status] + b"content-type: application/json\r\nconnection: close\r\n"
    return head + b"content-length: %d\r\n\r\n" % len(body) + body


def bounded_protocol(limits: HttpLimits, long_way: str = "") -> type[BoundedProtocol]:
    return type("BoundedProtocol", (BoundedProtocol,), {"limits": limits, "long_way": long_way})
