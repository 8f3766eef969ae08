"""The short way: inference requests that are plain enough are read, placed and answered by native code.

A request is plain when it comes in one piece (or its body in a few), in HTTP/1.1, with JSON or binary tensors
that fit the model, and asks for nothing unusual. All others, and all that are wrong in some way, go the long
way through uvicorn and the handlers, which know every feature and have a message for every error; so nothing
here explains anything to a client. Connections change from one way to the other between two requests.
"""

from __future__ import annotations

from asyncio import get_running_loop
from collections.abc import Callable, Sequence
from time import monotonic_ns
from typing import Any, Protocol, cast

from astrarium.core.units import MICROSECOND, MILLISECOND, Time
from astrarium.engines.tensors import BYTES
from astrarium.server.contract import Delivery, Express, ExpressClient, Kind, ModelCard, PackedCall, Refused
from astrarium.server.http.bodies import BodyReader
from astrarium.server.keys import Keys

AT_ONCE = 100 * MICROSECOND  # a loop that finds something to read so soon did not have to wait for it
LOOK_AGAIN = 50 * MILLISECOND  # how often a request that went the long way makes us look for changed models


class Connection(ExpressClient, Protocol):
    """A client as the lane needs it: with a socket to write to."""

    @property
    def here(self) -> bool:
        """Whether it can still be written to."""

    @property
    def socket(self) -> int:
        """-1 where earlier bytes are still on their way: the answer must queue up behind them."""


class ReadingLag:
    """How long requests lie unread before the event loop comes to them.

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
        """The bytes that were read just now had waited so long: probably, and at most."""
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


class Lane:
    """The short way into one service."""

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
        """Models are loaded and unloaded: the desk serves those that are ready, as they are now."""
        self._looked = now
        for index, card, why in self._service.cards():
            if self._cards.get(index) is not card:
                self._cards[index] = card
                self._learn(index, card, why or _why_long(card))

    def always_long(self) -> dict[str, str]:
        """The models of which no request can go the short way, or none that does not ask for binary answers,
        with the reason."""
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
    """Why no request of the model can go the short way now; empty where they can."""
    if card.state != "READY":
        return "not_ready"
    names = [card.name, *(spec.name for spec in (*card.inputs, *card.outputs))]
    return "" if card.outputs and all(name.isascii() and name.isprintable() for name in names) else "names"


def _text(card: ModelCard) -> str:
    return "text" if any(spec.datatype == BYTES for spec in (*card.inputs, *card.outputs)) else ""
