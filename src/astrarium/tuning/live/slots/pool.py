"""The slots of a machine are processes that are started when first needed, kept, and lent to runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from multiprocessing.connection import wait
from time import monotonic
from typing import Any, NamedTuple, Protocol

import msgspec

from astrarium.tuning.live.slots.fork_server import ForkServer
from astrarium.tuning.live.slots.messages import Gone, Message, Order, SlotReady, SlotSetup, Warm
from astrarium.tuning.live.slots.slot_process import SlotProcess

LOADING = 120.0  # seconds that a slot may take to come up: PyTorch is loaded meanwhile
TRIES = 3  # slots that die before they are ready for work; then their GPU is taken to be gone
ENDING = 5.0


class SlotMessage(NamedTuple):
    slot: int
    message: Message


class Slots(Protocol):
    """Slots are processes for a backend's runs, on this machine or on others. A slot is a number."""

    def gpus(self) -> tuple[int, ...]: ...

    def take(self, gpu: int) -> int:
        """Return an idle slot of the GPU, or a new one."""

    def give_back(self, slot: int) -> None:
        """Take a slot back whose run has ended."""

    def send(self, slot: int, order: Order) -> None: ...

    def kill(self, slot: int) -> None:
        """Kill a slot at once, with all that it has started. No message of it follows."""

    def hear(self, seconds: float) -> list[SlotMessage]:
        """Return messages; wait so long for the first. The end of a slot is reported once."""

    def close(self) -> None: ...


class SlotTemplate(NamedTuple):
    """The slots of a GPU are forked by this server, and get this setup."""

    fork_server: ForkServer
    setup: SlotSetup


class LocalSlots:
    """The pool keeps at most *most* slots for each GPU, and as long as there are fewer, one more than are in
    use. *patience*: seconds of silence after which a slot is taken to be gone. *shared*: one slot takes all
    runs of a GPU. *first*: the GPUs to begin with, where they are not all."""

    def __init__(
        self,
        gpus: Mapping[int, SlotTemplate],
        most: int = 4,
        patience: float = 30.0,
        shared: bool = False,
        first: Collection[int] | None = None,
    ):
        self._templates = dict(gpus)
        self._most = most
        self._patience = patience
        self._shared = shared
        self._in_use = {gpu: template for gpu, template in gpus.items() if first is None or gpu in first}
        self._fork_servers = {id(gpu.fork_server): gpu.fork_server for gpu in gpus.values()}
        self.given_up = ""  # why the last GPU was
        self._slots: dict[int, SlotProcess] = {}
        self._messages: list[SlotMessage] = []
        self._failures: dict[int, int] = {}
        self._next = 0
        for gpu in self._in_use:
            self._start(gpu)

    def gpus(self) -> tuple[int, ...]:
        return tuple(self._in_use)

    @property
    def warm(self) -> bool:
        """Tell whether all slots are up, and have loaded what they need."""
        return all(slot.warm for slot in self._slots.values())

    @property
    def count(self) -> int:
        return len(self._slots)

    def take(self, gpu: int) -> int:
        idle = self._idle(gpu)
        number = idle[0] if idle else self._start(gpu)
        self._slots[number].runs += 1
        self._keep_a_spare(gpu)
        return number

    def give_back(self, slot: int) -> None:
        if slot in self._slots:
            self._slots[slot].runs -= 1

    def send(self, slot: int, order: Order) -> None:
        """Send an order. If the slot has just died, its end is noticed soon enough."""
        if slot in self._slots:
            with suppress(OSError):
                self._slots[slot].pipe.send(order)

    def kill(self, slot: int) -> None:
        ended = self._slots.pop(slot, None)
        if ended is not None:
            ended.end()
            ended.wait(ENDING)
            self._keep_a_spare(ended.gpu)

    def withdraw(self, gpu: int) -> None:
        """Give up a GPU: its slots are gone."""
        self._in_use.pop(gpu, None)
        for number in [number for number, slot in self._slots.items() if slot.gpu == gpu]:
            self._lose(number, "its GPU is gone")

    def restore(self, gpu: int) -> None:
        """Take a GPU into use that was not, or was given up."""
        if gpu in self._templates and gpu not in self._in_use:
            self._in_use[gpu] = self._templates[gpu]
            self._failures.pop(gpu, None)
            self._start(gpu)

    def hear(self, seconds: float) -> list[SlotMessage]:
        sources: dict[Any, int] = {slot.pipe: number for number, slot in self._slots.items()}
        for number, slot in self._slots.items():
            if slot.handle is not None:  # processes that it started may hold its pipe open
                sources[slot.handle] = number
        ready = wait(list(sources), 0 if self._messages else seconds)
        for number in sorted({sources[source] for source in ready}):
            self._drain(number)
        self._lose_silent()
        messages = self._messages
        self._messages = []
        return messages

    def close(self) -> None:
        slots = list(self._slots.values())
        self._slots = {}
        for slot in slots:
            slot.end()
        for slot in slots:
            slot.wait(ENDING)
        for fork_server in self._fork_servers.values():
            fork_server.close()

    def _start(self, gpu: int) -> int:
        fork_server, setup = self._in_use[gpu]
        if setup.log:
            setup = msgspec.structs.replace(setup, log=f"{setup.log}-{self._next}.txt")
        self._slots[self._next] = SlotProcess(gpu, fork_server.fork(setup))
        self._next += 1
        return self._next - 1

    def _of(self, gpu: int) -> dict[int, SlotProcess]:
        return {number: slot for number, slot in self._slots.items() if slot.gpu == gpu}

    def _idle(self, gpu: int) -> list[int]:
        """Return idle slots of the GPU, those that are up first."""
        idle = [number for number, slot in self._of(gpu).items() if self._shared or not slot.runs]
        return sorted(idle, key=lambda number: not self._slots[number].pid)

    def _keep_a_spare(self, gpu: int) -> None:
        if gpu in self._in_use and not self._idle(gpu) and len(self._of(gpu)) < self._most:
            self._start(gpu)

    def _drain(self, number: int) -> None:
        slot = self._slots.get(number)
        if slot is None:  # it was lost with its GPU
            return
        slot.last_sign = monotonic()
        over = slot.over
        try:
            while slot.pipe.poll():
                message = slot.pipe.recv()
                if isinstance(message, SlotReady):
                    slot.came_up(message.pid)
                elif isinstance(message, Warm):
                    slot.warm = True
                    self._failures.pop(slot.gpu, None)
                elif isinstance(message, Gone):
                    slot.last_words = message.why
                else:
                    self._messages.append(SlotMessage(number, message))
        except (EOFError, OSError):
            over = True
        if over:
            self._lose(number, slot.last_words)

    def _lose_silent(self) -> None:
        now = monotonic()
        for number, slot in list(self._slots.items()):
            patience = self._patience if slot.pid else max(LOADING, self._patience)
            if number in self._slots and now - slot.last_sign > patience:
                self._lose(number, f"its process gave no sign of life for {patience:g} s")

    def _lose(self, number: int, why: str) -> None:
        slot = self._slots.pop(number)
        slot.end()
        slot.wait(ENDING)
        self._messages.append(SlotMessage(number, Gone(why)))
        if not slot.warm:
            self._failures[slot.gpu] = self._failures.get(slot.gpu, 0) + 1
        if self._failures.get(slot.gpu, 0) >= TRIES and slot.gpu in self._in_use:
            self.given_up = why
            self.withdraw(slot.gpu)
