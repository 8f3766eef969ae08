"""A connection that tries the short way first, and goes the long way with everything else."""

from __future__ import annotations

import logging
from asyncio import Transport
from time import monotonic_ns
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from astrarium.core.units import SECOND, Time
from astrarium.server.contract import Kind, PackedCall, Refused
from astrarium.server.http.express import Lane
from astrarium.server.http.protocol import BoundedProtocol
from astrarium.server.http.replies import refusal
from astrarium.server.settings import HttpLimits

log = logging.getLogger(__name__)


class ExpressProtocol(BoundedProtocol):
    """One request at a time: what comes before the last one is answered waits its turn."""

    lane: Lane
    packed: Any = None  # the call that waits for its answer
    _line: object = None
    _fd = -1
    _waiting = False  # for the answer to `packed`
    _next = b""  # came meanwhile
    _parts: list[bytes] | None = None  # of a request whose body is not whole
    _missing = 0
    _since: Time = 0  # when the first byte of the last request came, or when it was answered
    _closing = False  # after the answer

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._fd = transport.get_extra_info("socket").fileno()

    # requests

    def data_received(self, data: bytes) -> None:
        now = monotonic_ns()
        self.lane.keep_pace(now)
        if self._waiting:
            self._next += data
            self.transport.pause_reading()
        elif self._parts is not None:
            self._go_on(data, now)
        elif self._arriving or (self.cycle is not None and not self.cycle.response_complete):
            self._go_long_way(data, "pipelined")
        else:
            waited, at_most = self.lane.lag.of(self._fd, now)
            self._since = now - at_most
            self._try(data, waited)

    def _try(self, data: bytes, waited: Time) -> None:
        """*waited* is how long the last bytes of the request lay unread."""
        found = self.lane.read(data, self._since, waited, self._fd) if self._welcome() else "busy"
        if isinstance(found, bytes):
            self._refused(found)
        elif isinstance(found, str):
            self._go_long_way(data, found)
        elif isinstance(found, int):
            self._wait_for(found, data)
        else:
            self._take(found)

    def _refused(self, unsent: bytes) -> None:
        """The refusal is on its way already, but for these bytes."""
        if unsent:
            self.transport.write(unsent)
        if self.timeout_keep_alive_task is None:
            self._arm(self.timeout_keep_alive)

    def _go_long_way(self, data: bytes, why: str) -> None:
        self.long_way = why
        super().data_received(data)

    def _welcome(self) -> bool:
        """Nothing on its way that an answer might overtake, and not too many connections."""
        free = self.limit_concurrency is None or len(self.connections) < self.limit_concurrency
        return free and not self.transport.get_write_buffer_size()

    def _wait_for(self, missing: int, data: bytes) -> None:
        """The rest of a body, as long as all connections together do not keep too much."""
        if not self.lane.hold(len(data)):
            self._go_long_way(data, "held")
            return
        self._parts, self._missing = [data], missing
        self._deadline = self.loop.call_later(self.limits.request_seconds, self._too_slow)

    def _go_on(self, data: bytes, now: Time) -> None:
        assert self._parts is not None
        if not self.lane.hold(len(data)):
            self._go_long_way(self._whole() + data, "held")
            return
        self._parts.append(data)
        self._missing -= len(data)
        if self._missing <= 0:
            self._try(self._whole(), self.lane.lag.of(self._fd, now)[0])

    def _whole(self) -> bytes:
        """The parts put together; nothing is being waited for any more."""
        parts, self._parts = b"".join(self._parts or ()), None
        self.lane.let_go(len(parts))
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        return parts

    def _take(self, packed: PackedCall) -> None:
        self.packed, self._waiting = packed, True
        try:
            self.lane.take(self, self._since)
        except Refused as refused:
            self.turn_down(refused)
        except Exception as error:
            log.exception("taking a call failed")
            reason = f"the server failed, not the request: {type(error).__name__}"
            self._closing = True  # nobody knows how far it got: there must not be a second answer
            self.turn_down(Refused(Kind.MODEL_FAILED, reason))

    # answers

    @property
    def line(self) -> object:
        if self._line is None and self.here:
            self._line = self.lane.new_line(self._fd)
        return self._line

    @property
    def here(self) -> bool:
        return not self.transport.is_closing()

    @property
    def socket(self) -> int:
        return self._fd if not self.transport.get_write_buffer_size() else -1

    def sent(self, unsent: bytes) -> None:
        self._waiting, self.packed, self._since = False, None, monotonic_ns()
        if not self.here:
            return
        if unsent:
            self.transport.write(unsent)
        if self._closing:
            self.transport.close()
        elif self.timeout_keep_alive_task is None:
            self._arm(self.timeout_keep_alive)
        if self._next:
            self.loop.call_soon(self._turn)

    def turn_down(self, refused: Refused) -> None:
        if self.here:
            reply = refusal(refused)
            headers = [*self.server_state.default_headers, *reply.headers]
            lines = b"".join(b"%b: %b\r\n" % header for header in headers)
            length = b"content-length: %d\r\n\r\n" % len(reply.body)
            self.sent(STATUS_LINE[reply.status] + lines + length + reply.body)

    def _turn(self) -> None:
        """The request that came too early has its turn."""
        data, self._next = self._next, b""
        if data and self.here:
            self.transport.resume_reading()
            self.data_received(data)

    # the connection

    def _arm(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        """Requests of the short way do not touch the timer; it looks here before it closes."""
        quiet = (monotonic_ns() - self._since) / SECOND
        if not self.here:
            return
        if self._waiting or self._parts is not None:
            self._arm(self.timeout_keep_alive)
        elif quiet < self.timeout_keep_alive:
            self._arm(self.timeout_keep_alive - quiet)
        else:
            super().timeout_keep_alive_handler()

    def shutdown(self) -> None:
        if self._waiting:
            self._closing = True
            return
        if self._parts is not None:
            self._go_long_way(self._whole(), "held")
        super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._parts is not None:
            self._whole()
        self._next, self._line, self.packed, self._waiting = b"", None, None, False
        super().connection_lost(exc)
        self._unset_keepalive_if_required()


def express_protocol(limits: HttpLimits, lane: Lane) -> type[ExpressProtocol]:
    return type("ExpressProtocol", (ExpressProtocol,), {"limits": limits, "lane": lane})
