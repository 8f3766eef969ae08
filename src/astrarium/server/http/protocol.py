"""The connection's protocol checks, times and bounds the arrival of requests."""

from __future__ import annotations

from asyncio import BaseTransport, TimerHandle, Transport
from time import monotonic_ns
from typing import Any, NamedTuple, cast

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from astrarium.core.optional import extension
from astrarium.core.quantities import Time
from astrarium.server.client_errors import ClientErrors
from astrarium.server.http.framing import RequestFraming
from astrarium.server.http.request_head import BadRequest
from astrarium.server.http.routing import LONG_WAY, RECEIVED, USER
from astrarium.server.process.descriptors import most_descriptors
from astrarium.server.protocol.regions import UNKNOWN_USER
from astrarium.server.protocol.wire import ErrorAnswer
from astrarium.server.settings import HttpLimits

# Seconds for a client to read the last answer and to close; as in native/front/http1/http1_thread.h.
LINGER = 2.0


class Refusal(NamedTuple):
    status: int
    reason: str


class BoundedProtocol(HttpToolsProtocol):
    """A bounded protocol refuses what is no request of HTTP/1.1, and one too large or not whole in time.

    So a client cannot hold memory or a connection for ever. One request after the other is read: what a
    client sends beyond waits, unread but for one piece, until the one before is answered. It notes when a
    request's first byte came: the request's own task may start much later.
    """

    limits = HttpLimits()
    errors = ClientErrors()
    long_way = ""  # why requests go this way and not the short one
    _came: Time = 0  # when the first byte of this request did
    _deadline: TimerHandle | None = None
    _began = False  # the application has heard of the request whose body arrives
    _open = False  # it has not answered it yet
    _ends = False  # the client sends no more
    _is_over = False  # what comes now is thrown away
    _unsent = 0  # bytes, when we last looked

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._framing = RequestFraming(self.limits)

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(cast(Transport, transport))
        self._wait_for_request()
        socket = transport.get_extra_info("socket")
        if socket is not None and socket.fileno() >= most_descriptors():
            self.errors.no_descriptor()
            self._is_over = True
            self.transport.write(last_answer(no_descriptor()))
            self.transport.close()  # at once: others wait for the descriptor

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clocks()
        super().connection_lost(exc)

    def _stop_clocks(self) -> None:
        self._unset_keepalive_if_required()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _wait_for_request(self) -> None:
        """Give an idle client its time; uvicorn gives one only to clients that have been answered before."""
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection; one that takes none of what was sent must be cut off."""
        unsent = self.transport.get_write_buffer_size()
        if unsent and unsent != self._unsent:
            self._unsent = unsent
            self._wait_for_request()
        elif unsent:
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return  # after what was no request, nobody knows where the next one begins
        self._unset_keepalive_if_required()
        if not self._framing.arriving:
            self._came = self._now()
        self._framing.feed(data)
        self._read_on()

    def _now(self) -> Time:
        return monotonic_ns()

    def _read_on(self) -> None:
        """Read the request that is open to its end, and the next one once it is answered."""
        try:
            while not (
                self._is_over or self.transport.is_closing() or (self._open and self._framing.at_start)
            ):
                if (piece := self._framing.piece()) is None:
                    break
                self.parser.feed_data(piece)
        except BadRequest as bad:
            self.refuse(bad.status, bad.reason)
        except httptools.HttpParserError as error:
            cause = error.__context__ if isinstance(error.__context__, BadRequest) else None
            self.refuse(*((cause.status, cause.reason) if cause else (400, f"request: {error}")))
        self._after_reading()

    def _after_reading(self) -> None:
        if self._is_over or self.transport.is_closing():
            return
        if self._open and self._framing.at_start:
            if self._framing.buffered:
                self.flow.pause_reading()
            self._end_deadline()
        elif self._framing.arriving:
            self._set_deadline()
        else:
            self._end_deadline()
            if not self._open:
                self._wait_for_request()

    def _set_deadline(self) -> None:
        if self._deadline is None:
            late = too_slow(self.limits)
            self._deadline = self.loop.call_later(self.limits.request_seconds, self.refuse, *late)

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[RECEIVED] = self._came  # type: ignore[literal-required]
        self.scope[LONG_WAY] = self.long_way  # type: ignore[literal-required]
        self.scope[USER] = self._user  # type: ignore[literal-required]
        self._began = False

    def _user(self) -> int:
        """Return which user of this machine the client is; it takes the kernel some microseconds to say."""
        socket = self.transport.get_extra_info("socket")
        front = extension("_front")
        if socket is None or front is None:
            return UNKNOWN_USER
        user: int = front.user_of_peer(socket.fileno())
        return user

    def on_headers_complete(self) -> None:
        if self.limits.connections is not None and len(self.connections) >= self.limits.connections:
            raise BadRequest(503, f"connections: expected fewer than {self.limits.connections} at once")
        super().on_headers_complete()
        self._began = self._open = True

    def on_response_complete(self) -> None:
        self._open = False
        super().on_response_complete()
        if not self.transport.is_closing():
            self._read_on()
        self._end_if_over()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Answer what has come whole, and close then. With TLS there is no half of a connection."""
        self._ends = True
        self._end_if_over()
        return self.scheme == "http" and not self.transport.is_closing()

    def _end_if_over(self) -> None:
        """Close where the client sends no more and all but part of a request is answered."""
        if self._ends and not self.transport.is_closing() and (self._is_over or not self._answers()):
            self._disconnect()
            self.transport.close()

    def _answers(self) -> bool:
        """Whether a request that has come whole is being answered."""
        return self._open and self._framing.at_start

    def refuse(self, status: int, reason: str) -> None:
        """Send the last answer on this connection, unless this request has one already."""
        if self.transport.is_closing() or self._is_over:
            return
        self.errors.bad_request(self._client(), status, reason)
        is_answered = self._began and not self._framing.in_head and self.cycle.response_started
        self._disconnect()
        self._leave(b"" if is_answered else last_answer(Refusal(status, reason)))

    def _client(self) -> str:
        host, port = self.client or ("an unknown address", 0)
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _disconnect(self) -> None:
        """Tell the application that the rest of the request, for which it waits, will not come."""
        if self._open and self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def _leave(self, last: bytes) -> None:
        """Send the last bytes and close, but read on for a while: a reset might overtake them."""
        self._is_over = True
        self._stop_clocks()
        self.transport.write(last)
        if not self.transport.can_write_eof():
            self.transport.close()
            return
        self.transport.write_eof()
        self.flow.resume_reading()
        self._deadline = self.loop.call_later(LINGER, self.transport.abort)


def too_slow(limits: HttpLimits) -> Refusal:
    return Refusal(408, f"request: expected whole within {limits.request_seconds} s")


def no_descriptor() -> Refusal:
    return Refusal(503, "connections: the server has no descriptor left for this one")


def last_answer(refusal: Refusal) -> bytes:
    """Return an answer after which the connection is closed."""
    body = msgspec.json.encode(ErrorAnswer(refusal.reason))
    head = STATUS_LINE[refusal.status] + b"content-type: application/json\r\nconnection: close\r\n"
    return head + b"content-length: %d\r\n\r\n" % len(body) + body


def bounded_protocol(
    limits: HttpLimits, long_way: str = "", errors: ClientErrors | None = None
) -> type[BoundedProtocol]:
    attributes = {"limits": limits, "long_way": long_way, "errors": errors or ClientErrors()}
    return type("BoundedProtocol", (BoundedProtocol,), attributes)
