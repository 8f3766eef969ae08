"""The native scheduler hears the workers, and passes on what is not about batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from astrarium._scheduler import Scheduler


class HearingScheduler:
    """A hearing scheduler is what `LocalWorkers` hears workers by; *collect* takes in ended calls first."""

    def __init__(self, scheduler: Scheduler, collect: Callable[[], None]) -> None:
        self._scheduler = scheduler
        self._collect = collect
        self.bell = scheduler.bell
        self.watch = scheduler.watch
        self.forget = scheduler.forget
        self.stop = scheduler.stop

    def packets(self) -> list[tuple[int, bytes]]:
        self._collect()
        return self._scheduler.packets()
