"""An agent is an actor on one GPU of a Ray cluster that lives for a whole search, and keeps the GPU's slots.

A thread owns the slots. Orders reach it through a queue and wake it; messages of slots wait until the driver
asks, which it does all the time: an answer is a sign of life. If nobody asks for long, the driver is gone or
cut off, and whatever runs here is ended: others have been ordered to train it.

A *lease* is the driver's number of a slot while one run has it. Numbers are never used again, so that nothing
old can be mistaken for something new.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import wait
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import Any, Literal, NamedTuple

from astrarium.tuning.live.slots.environment import environment
from astrarium.tuning.live.slots.fork_server import PRELOAD, ForkServer
from astrarium.tuning.live.slots.messages import Beat, Gone, Message, Order, SlotSetup
from astrarium.tuning.live.slots.pool import LocalSlots, SlotMessage, SlotTemplate

Verb = Literal["send", "give_back", "kill"]
TICK = 1.0  # seconds between two looks at whether anybody asks
GLOO = "GLOO_SOCKET_IFNAME"
GPU = 0  # an agent has one GPU, which it numbers 0


class AgentAnswer(NamedTuple):
    """An agent answers the driver with the messages of its slots, and whether its GPU can be used."""

    messages: list[SlotMessage]  # by lease
    usable: bool


class AgentSettings(NamedTuple):
    setup: SlotSetup
    most: int = 4  # slots that are kept
    patience: float = 30.0  # for a silent slot
    unasked: float = 30.0  # seconds without a question after which the driver is taken to be gone
    shared: bool = False
    gate: bool = True
    alone: bool = True  # the cluster has no other machine
    preload: tuple[str, ...] = PRELOAD
    searched: tuple[str, ...] = ()  # folders in which the driver finds modules


class WakeableSlots(LocalSlots):
    """The thread that owns these slots can be woken while it waits for their messages."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._bell, self._ringer = Pipe(duplex=False)

    def ring(self) -> None:
        self._ringer.send_bytes(b".")

    def hear(self, seconds: float) -> list[SlotMessage]:
        messages = super().hear(0)
        if not messages:
            pipes = [slot.pipe for slot in self._slots.values()]
            wait([*pipes, self._bell], seconds)
            messages = super().hear(0)
        while self._bell.poll():
            self._bell.recv_bytes()
        return messages


class SlotAgent:
    """An agent keeps the slots of its GPU; this class knows nothing of Ray."""

    def __init__(self, settings: AgentSettings, slots: WakeableSlots | None = None) -> None:
        self._slots = slots or _slots(settings)
        self._unasked = settings.unasked
        self._last_asked = monotonic()
        self._slot_of: dict[int, int] = {}  # by lease
        self._orders: SimpleQueue[tuple[Verb, int, Order | None]] = SimpleQueue()
        self._news: SimpleQueue[SlotMessage] = SimpleQueue()
        self._open = True
        Thread(target=self._serve, daemon=True, name="slots").start()

    def order(self, verb: Verb, lease: int, order: Order | None = None) -> None:
        """Queue what the driver wants done with the slot of a lease."""
        self._orders.put((verb, lease, order))
        self._slots.ring()

    def hear(self, seconds: float) -> AgentAnswer:
        """Return the messages of slots; wait so long for the first."""
        self._last_asked = monotonic()
        messages: list[SlotMessage] = []
        with suppress(Empty):
            messages.append(self._news.get(timeout=seconds))
            while True:
                messages.append(self._news.get_nowait())
        self._last_asked = monotonic()
        return AgentAnswer(messages, bool(self._slots.gpus()))

    def close(self) -> None:
        self._open = False
        self._slots.ring()

    def _serve(self) -> None:
        while self._open:
            for received in self._slots.hear(TICK):
                self._receive(received)
            with suppress(Empty):
                while True:
                    self._carry_out(*self._orders.get_nowait())
            if monotonic() - self._last_asked > self._unasked:
                self._end_all()
        self._slots.close()

    def _receive(self, received: SlotMessage) -> None:
        if isinstance(received.message, Beat):
            return  # that is between the slot and us
        for lease in [lease for lease, slot in self._slot_of.items() if slot == received.slot]:
            self._pass_on(lease, received.message)

    def _pass_on(self, lease: int, message: Message) -> None:
        self._news.put(SlotMessage(lease, message))
        if isinstance(message, Gone):
            self._slot_of.pop(lease, None)

    def _carry_out(self, verb: Verb, lease: int, order: Order | None) -> None:
        if verb == "send" and order is not None:
            self._send(lease, order)
            return
        slot = self._slot_of.pop(lease, None)
        if slot is None:
            return
        if verb == "kill":
            self._slots.kill(slot)
        else:
            self._slots.give_back(slot)

    def _send(self, lease: int, order: Order) -> None:
        """Send an order to a slot, which is taken with its first order."""
        if lease not in self._slot_of:
            if not self._slots.gpus():
                self._pass_on(lease, Gone("no process can be started on its GPU"))
                return
            self._slot_of[lease] = self._slots.take(GPU)
        self._slots.send(self._slot_of[lease], order)

    def _end_all(self) -> None:
        for lease, slot in list(self._slot_of.items()):
            self._slots.kill(slot)
            self._pass_on(lease, Gone("nobody asked for it any more"))


def _slots(settings: AgentSettings) -> WakeableSlots:
    sys.path += [folder for folder in settings.searched if folder not in sys.path]
    fork_server = ForkServer(_environment(settings, os.environ), tuple(dict.fromkeys(settings.preload)))
    gpu = SlotTemplate(fork_server, settings.setup)
    return WakeableSlots({GPU: gpu}, settings.most, settings.patience, settings.shared)


def _environment(settings: AgentSettings, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of slots. Ray has told this process which GPU is its own: it sees no other.
    Gangs stay on the loopback device only where there is no other machine."""
    own = environment(GPU, settings.setup, settings.gate, environ)
    if not settings.alone and GLOO not in environ:
        own.pop(GLOO, None)
    return own
