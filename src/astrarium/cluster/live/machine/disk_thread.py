"""One thread does all that touches the disk of a machine: a slow disk does not make the machine silent."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from typing import Generic, TypeVar

SOON = 1.0  # seconds that a look at the disk is waited for


Seen = TypeVar("Seen")


class DiskThread(Generic[Seen]):
    """One *thread* does all that touches the disk of a machine, in order. While it waits for a slow disk,
    whoever looks is told what was seen last: so the machine is not silent."""

    def __init__(self, look: Callable[[], Seen], thread: Executor | None = None) -> None:
        self._look = look
        self._thread = thread or ThreadPoolExecutor(1)
        self._orders: list[tuple[int, Future[None]]] = []
        self._looking: Future[Seen] | None = None
        self._seen: list[Seen] = []  # nothing, or what was seen last
        self._taken = self.done = 0  # numbers of the last order that has come, and was carried out

    def look(self) -> Seen:
        """Return what is there, or was last seen; an order that could not be carried out raises here."""
        self._looking = self._looking or self._thread.submit(self._look)
        wait([self._looking], SOON if self._seen else None)
        self._check_orders()
        if self._looking.done():
            done = self._looking
            self._looking = None
            self._seen = [done.result()]
        return self._seen[0]

    def order(self, number: int, deed: Callable[[], None]) -> None:
        """Have an order carried out; one with a number that has come already is on its way."""
        if number > self._taken:
            self._taken = number
            self._orders.append((number, self._thread.submit(deed)))

    def close(self) -> None:
        """Drop the orders that are not begun."""
        for _, order in self._orders:
            order.cancel()

    def _check_orders(self) -> None:
        while self._orders and self._orders[0][1].done():
            number, order = self._orders.pop(0)
            order.result()
            self.done = number
