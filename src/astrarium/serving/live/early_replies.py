"""Who hears the workers of this machine before the event loop does, and sends answers by itself (native)."""

from __future__ import annotations

from typing import Any, Protocol, cast

from astrarium.core.native import extension
from astrarium.core.units import Time


class Courier(Protocol):
    """A thread of its own: the engine gives it the workers' sockets, the server tells it what to answer."""

    def bell(self) -> int:
        """A descriptor that can be read when there are packets."""

    def watch(self, worker: int, socket: int) -> None: ...
    def forget(self, worker: int) -> None:
        """Hear what is left of its words, then no more of it."""

    def has_news(self) -> bool:
        """Whether there are packets."""

    def packets(self) -> list[tuple[int, bytes]]:
        """Who said what since the last time."""

    def expect(self, run: int, parcels: list[Any]) -> None:
        """When this batch is done, answer: (packed call of one row, its client's line, offset and size of
        its room, place in the batch)."""

    def collect(self, run: int) -> tuple[Time, list[int], list[tuple[int, bytes]]]:
        """When answers of a batch were sent (0: none were), to which parcels, and what was left of some."""

    def stop(self) -> None:
        """Nothing is heard or answered any more; what was heard can still be collected."""


def new_courier(memory: memoryview) -> Courier | None:
    """None where the extension was not built: then the event loop hears the workers itself."""
    module = extension("_express")
    return None if module is None else cast(Courier, module.Courier(memory))
