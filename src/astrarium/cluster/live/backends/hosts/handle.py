"""The arbiter's side of one agent: what it reported last, and the orders that it has not yet carried out."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

import msgspec

from astrarium.cluster.live.backend import RunKey
from astrarium.cluster.live.backends.hosts.messages import (
    FetchCheckpoint,
    ForgetRun,
    HostOrder,
    Join,
    Orders,
    Report,
    RetryGpu,
    SendCheckpoint,
    StartPart,
    StopRun,
)
from astrarium.cluster.live.machine.parts import PartOrder, PartStatus
from astrarium.cluster.live.wire.channel import Channel

ASK_AGAIN = 5.0  # seconds after which a checkpoint that has not come is asked for again


class HostHandle:
    """A machine as the arbiter knows it: its last report, and the orders that it has not yet carried out."""

    def __init__(self, join: Join) -> None:
        self.machine = join.machine
        self.device_base = join.device_base
        self._lock = threading.Lock()
        self._parts: dict[RunKey, PartStatus] = {}
        self._ports = [0]
        self._orders = list[tuple[int, HostOrder]]()
        self._given = 0
        self._asked: dict[object, float] = {}
        self.troubles: dict[object, str] = {}  # checkpoints that could not be brought there, and why
        self.answered = False
        self.joined(join, None)

    def joined(self, join: Join, channel: Channel | None) -> None:
        """Hear that the agent has connected, maybe once more."""
        self.address = join.address
        self.heard_at = time.monotonic()
        self.channel = channel
        self.held = {one.job: one for one in join.held}

    def exchange(self, report: Report) -> Orders:
        """Hear a report, and return the orders that were not carried out before it."""
        with self._lock:
            self.heard_at = time.monotonic()
            self.answered = True
            self._parts = {part.order.key: part for part in report.parts}
            self._ports = report.ports
            self.machine = msgspec.structs.replace(self.machine, sick=report.sick, watched=report.watched)
            self.held |= {one.job: one for one in report.held}
            self.troubles |= {one.name: why for one, why in report.troubles}
            self._orders = [numbered for numbered in self._orders if numbered[0] > report.done]
            return Orders(list(self._orders))

    def port(self) -> int:
        """Return a free port; with too many gangs at once two may share one, and one begins again."""
        with self._lock:
            return self._ports.pop() if len(self._ports) > 1 else self._ports[0]

    def look(self) -> Mapping[RunKey, PartStatus]:
        return self._parts

    def start(self, part: PartOrder) -> None:
        self.give(StartPart(part))

    def stop(self, key: RunKey) -> None:
        self.give(StopRun(key))

    def retry(self, gpu: int) -> None:
        self.give(RetryGpu(gpu))

    def forget(self, key: RunKey) -> None:
        if key in self._parts:
            self.give(ForgetRun(key))

    def give(self, order: HostOrder) -> None:
        """Give an order with the next answer, unless it waits there already."""
        with self._lock:
            if all(queued != order for _, queued in self._orders):
                self._given += 1
                self._orders.append((self._given, order))

    def ask(self, order: SendCheckpoint | FetchCheckpoint) -> None:
        """Ask for a checkpoint to be sent or fetched, and again when that has taken long."""
        what = (type(order), order.held.name)
        now = time.monotonic()
        if now - self._asked.get(what, float("-inf")) > ASK_AGAIN:
            self._asked = {wish: at for wish, at in self._asked.items() if now - at < ASK_AGAIN}
            self._asked[what] = now
            self.give(order)
