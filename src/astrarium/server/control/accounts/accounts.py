"""Accounts bring together what Python, network threads and the native scheduler have counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import time_ns
from typing import TYPE_CHECKING

from astrarium.core.quantities import MILLISECOND, Time
from astrarium.server.control.accounts.last_minute import LastMinute
from astrarium.server.control.accounts.model_accounts import BatchesDone, ModelAccounts
from astrarium.server.control.accounts.tally import Tally, enter, growth
from astrarium.server.control.calls.ticket import KeptGpu

if TYPE_CHECKING:
    from astrarium._front import Tally as NativeTally
    from astrarium._scheduler import Scheduler


class Accounts:
    """Accounts are kept for each model, for trial calls of each model, for each GPU and for the last minute.

    Calls that Python reads are entered at once, all else by `sync`, before somebody looks.
    """

    def __init__(self, models: Sequence[str], gpus: int, clock: Callable[[], Time]) -> None:
        self.models = [ModelAccounts(name) for name in models]
        self.trials = [ModelAccounts(name) for name in models]  # of calls that the server made up itself
        self.recent = LastMinute()
        self.gpu_busy = [0] * gpus  # nanoseconds
        self.batch_listeners: list[Callable[[int, Sequence[KeptGpu]], None]] = []
        self.tally: Callable[[int], NativeTally] | None = None  # what network threads counted of a model
        self._entered = [Tally()] * len(models)  # of the tallies
        self._clock = clock

    def sync(self, scheduler: Scheduler) -> None:
        """Enter what network threads and the scheduler have counted since the last time."""
        self._enter_tallies()
        models, seconds = scheduler.batches()
        for model, batches, last in models:
            self._enter_batches(model, BatchesDone(*batches), [KeptGpu(*batch) for batch in last])
        for gpu, second, busy in seconds:
            self.gpu_busy[gpu] += busy
            self.recent.add(second, busy=busy)
        for model, accounts in enumerate(self.models):
            accounts.retried = scheduler.retried(model)

    def open_in_python(self) -> int:
        """Return how many calls are open of those that Python has read."""
        in_threads = sum(tally.accepted - sum(tally.ended.values()) for tally in self._entered)
        return sum(accounts.open for accounts in (*self.models, *self.trials)) - in_threads

    def _enter_tallies(self) -> None:
        if self.tally is None:
            return
        now = self._clock()
        for model, accounts in enumerate(self.models):
            before = self._entered[model]
            tally = Tally(*self.tally(model))
            if tally == before:
                continue
            self._entered[model] = tally
            new = Tally(*growth(before, tally))
            enter(accounts, new)
            if ended := sum(new.ended.values()):
                self.recent.add(now, ended=ended, good=new.ended.get(("in_time", ""), 0))

    def _enter_batches(self, model: int, new: BatchesDone, last: Sequence[KeptGpu]) -> None:
        """Enter batches that ended well, and show the *last* of them to those who listen."""
        self.models[model].batches_done(new, time_ns() // MILLISECOND)
        for listener in self.batch_listeners:
            listener(model, last)
