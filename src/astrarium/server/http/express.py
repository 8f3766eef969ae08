"""On the short way, inference requests that are plain enough are read, placed and answered by native code.

A request is plain when it comes in one piece (or its body in a few), in HTTP/1.1, with JSON or binary tensors
that fit the model, and asks for nothing unusual. All others, and all that are wrong in some way, go the long
way through uvicorn and the handlers, which know every feature and have a message for every error; so nothing
here explains anything to a client. Connections change from one way to the other between two requests.
"""

from __future__ import annotations

import logging
from asyncio import Transport, get_running_loop
from collections.abc import Callable, Sequence
from time import monotonic_ns
from typing import Any, Protocol, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from astrarium.core.units import MICROSECOND, MILLISECOND, SECOND, Time
from astrarium.server.contract import Delivery, Express, ExpressClient, Kind, ModelCard, PackedCall, Refused
from astrarium.server.http.bodies import BodyReader, refusal
from astrarium.server.http.protocol import BoundedProtocol
from astrarium.server.settings import HttpLimits, Keys
from astrarium.serving.live.tensors import BYTES

AT_ONCE = 100 * MICROSECOND  # a loop that finds something to read so soon did not have to wait for it
LOOK_AGAIN = 50 * MILLISECOND  # how often a request that went the long way makes us look for changed models


class Connection(ExpressClient, Protocol):
    """A connection is a client as the lane needs it: with a socket to write to."""

    @property
    def here(self) -> bool:
        """Whether the client can still be written to."""

    @property
    def socket(self) -> int:
        """Return the socket; -1 where earlier bytes are on their way: the answer must queue behind them."""


class ReadingLag:
    """The reading lag is how long requests lie unread before the event loop comes to them.

    The system tells by connection, in ticks of some milliseconds. The loop itself tells more closely: what it
    finds as soon as it looks came while it was busy with the turn before.
    """

    def __init__(self, native: Any) -> None:
        self._unread_for: Callable[[int], Time] = native.unread_for
        self._unsure: Time = 2 * native.TICK
        self._loop = get_running_loop()
        self._in_turn = False
        self._began: Time = 0  # when this turn of the loop, or the last one, began to read
        self._ended: Time = 0  # when the last one was over
        self._before: Time = 0  # how long the turn before this one took, if this one followed at once

    def of(self, socket: int, now: Time) -> tuple[Time, Time]:
        """Return how long the bytes that were read just now had waited: probably, and at most."""
        if not self._in_turn:
            self._begin(now)
        least, here = self._unread_for(socket), now - self._began
        most = least + self._unsure
        probably, longest = min(here + self._before // 2, most), min(here + self._before, most)
        return max(least, probably), max(least, longest)

    def _begin(self, now: Time) -> None:
        at_once = now - self._ended < AT_ONCE
        self._before = now - self._began if at_once else 0
        self._in_turn, self._began = True, now
        self._loop.call_soon(self._end)

    def _end(self) -> None:
        self._in_turn, self._ended = False, monotonic_ns()


class ExpressLane:
    """An express lane is the short way into one service."""

    def __init__(self, service: Express, native: Any, bodies: BodyReader, keys: Keys) -> None:
        limits = bodies.limits
        self._service, self._keys, self._bodies = service, keys, bodies
        self._desk = native.Desk(service.memory, limits.head_bytes, limits.body_bytes)
        self.new_line, self.lag = native.Line, ReadingLag(native)
        self._planned: object = None
        self._cards: dict[int, ModelCard] = {}  # as the desk knows them
        self._looked: Time = 0
        self.keep_pace = service.keep_pace
        service.deliver, service.full = self._deliver, self._desk.full
        self._look(monotonic_ns())

    def read(self, request: bytes, now: Time, waited: Time, socket: int) -> PackedCall | int | str | bytes:
        """Return a call, or the bytes that are still missing, or why it goes the long way. A request that had
        *waited* too long unread was refused on its socket: what is left of that answer to be sent."""
        if waited and self._service.planned() is not self._planned:
            self._plan()
        found: Any = self._desk.read(request, waited, socket)
        kind = type(found)
        if kind is str:
            if now - self._looked > LOOK_AGAIN:
                self._look(now)
            return cast(str, found)
        if kind is int:
            return "key" if self._keys else cast(int, found)  # who shows no key has no body kept either
        if kind is tuple:
            self._service.hopeless(found[0])
            return cast(bytes, found[1])
        if self._service.card(found.model) is not self._cards[found.model]:
            self._look(now)
            return "not_ready"  # as it was known here; the next one finds it as it is
        return cast(PackedCall, found)

    def take(self, client: Connection, received: Time) -> None:
        packed: Any = client.packed
        if self._keys:
            self._keys.check({b"authorization": packed.authorization, b"x-api-key": packed.api_key})
        self._service.take(client, received)

    def hold(self, size: int) -> bool:
        """Whether so many more bytes may be kept until a request is whole."""
        if self._bodies.held + size > self._bodies.limits.held_bytes:
            return False
        self._bodies.held += size
        return True

    def let_go(self, size: int) -> None:
        self._bodies.held -= size

    def _look(self, now: Time) -> None:
        """Tell the native desk which models are ready now: models are loaded and unloaded."""
        self._looked = now
        for index, card, why in self._service.cards():
            if self._cards.get(index) is not card:
                self._cards[index] = card
                self._learn(index, card, why or _why_long(card))

    def always_long(self) -> dict[str, str]:
        """Return the models of which no request can go the short way, with the reason.

        Among them are those of which only requests for binary answers can.
        """
        found = {card.name: why or _why_long(card) or _text(card) for _, card, why in self._service.cards()}
        return {name: why for name, why in found.items() if why}

    def _learn(self, index: int, card: ModelCard, why: str) -> None:
        if not why:
            sides = card.inputs, card.outputs
            tensors = ([(spec.name, spec.datatype, list(spec.shape)) for spec in side] for side in sides)
            objectives = card.slo, dict(card.priorities)
            self._desk.serve(index, card.name, card.version, *tensors, card.max_batch, *objectives)
            self._planned = None  # what it needs alone is not known yet
        else:
            self._desk.withhold(card.name, why)

    def _plan(self) -> None:
        self._planned = self._service.planned()
        for index in self._cards:
            self._desk.plan(index, self._service.needed(index))

    def _deliver(self, deliveries: Sequence[Delivery]) -> None:
        all_of_them = [(one, cast(Connection, one.client)) for one in deliveries]
        here = [(one, client) for one, client in all_of_them if client.here]
        answers = [(packed, client.socket, *where) for (_, packed, *where), client in here]
        unsent = dict(self._desk.answer(answers))
        for at, (_, client) in enumerate(here):
            rest = unsent.get(at, b"")
            if rest is None:
                client.turn_down(Refused(Kind.MODEL_FAILED, "the worker's answer is not what it said it is"))
            else:
                client.sent(rest)


def _why_long(card: ModelCard) -> str:
    """Return why no request of the model can go the short way now; empty where they can."""
    if card.state != "READY":
        return "not_ready"
    names = [card.name, *(spec.name for spec in (*card.inputs, *card.outputs))]
    return "" if card.outputs and all(name.isascii() and name.isprintable() for name in names) else "names"


def _text(card: ModelCard) -> str:
    return "text" if any(spec.datatype == BYTES for spec in (*card.inputs, *card.outputs)) else ""


log = logging.getLogger(__name__)


class ExpressProtocol(BoundedProtocol):
    """An express connection tries the short way first, and goes the long way with everything else.

    It serves one request at a time: what comes before the last one is answered waits its turn.
    """

    lane: ExpressLane
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
        """Try the short way; *waited* is how long the last bytes of the request lay unread."""
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
        """Send the rest of a refusal, which is on its way but for these bytes."""
        if unsent:
            self.transport.write(unsent)
        if self.timeout_keep_alive_task is None:
            self._arm(self.timeout_keep_alive)

    def _go_long_way(self, data: bytes, why: str) -> None:
        self.long_way = why
        super().data_received(data)

    def _welcome(self) -> bool:
        """Whether no earlier answer is on its way, and there are not too many connections."""
        free = self.limit_concurrency is None or len(self.connections) < self.limit_concurrency
        return free and not self.transport.get_write_buffer_size()

    def _wait_for(self, missing: int, data: bytes) -> None:
        """Wait for the rest of a body, unless all connections together keep too much."""
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
        """Return the parts put together; nothing is being waited for any more."""
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
        """Serve the request that came before the last one was answered."""
        data, self._next = self._next, b""
        if data and self.here:
            self.transport.resume_reading()
            self.data_received(data)

    # the connection

    def _arm(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection; requests of the short way do not touch the timer, so it looks here."""
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


def express_protocol(limits: HttpLimits, lane: ExpressLane) -> type[ExpressProtocol]:
    return type("ExpressProtocol", (ExpressProtocol,), {"limits": limits, "lane": lane})
