"""The ledger holds where requests and batches end up: a row each, in the order of their numbers."""

from __future__ import annotations

from array import array
from enum import IntEnum

from astrarium.core.quantities import Time


class Outcome(IntEnum):
    OPEN = 0
    IN_TIME = 1
    LATE = 2
    DROPPED = 3
    FAILED = 4


class Fate(IntEnum):
    """A batch's fate is how it ended."""

    RUNNING = 0
    FINISHED = 1
    PREEMPTED = 2
    FAILED = 3


class Ledger:
    """The ledger has a row for each request and batch; `reasons[code]` says why one was dropped or failed."""

    def __init__(self) -> None:
        self.reasons: list[str] = [""]
        self._codes = {"": 0}
        self.outcome = array("b")
        self.reason = array("i")
        self.done = array("q")
        self.batch = array("q")
        self.batch_model = array("i")
        self.batch_gpu = array("i")
        self.batch_size = array("i")
        self.batch_dispatched = array("q")
        self.batch_started = array("q")
        self.batch_finished = array("q")
        self.batch_fate = array("b")

    def open_request(self, request: int) -> None:
        missing = request + 1 - len(self.outcome)
        if missing > 0:
            self.outcome.extend([0] * missing)
            self.reason.extend([0] * missing)
            self.done.extend([-1] * missing)
            self.batch.extend([-1] * missing)

    def end_request(self, request: int, outcome: Outcome, reason: str, now: Time, batch: int = -1) -> None:
        self.outcome[request] = outcome
        self.done[request] = now
        self.batch[request] = batch
        if reason:
            self.reason[request] = self._code(reason)

    def open_batch(self, model: int, gpu: int, size: int, now: Time) -> int:
        self.batch_model.append(model)
        self.batch_gpu.append(gpu)
        self.batch_size.append(size)
        self.batch_dispatched.append(now)
        self.batch_started.append(-1)
        self.batch_finished.append(-1)
        self.batch_fate.append(Fate.RUNNING)
        return len(self.batch_fate) - 1

    def end_batch(self, batch: int, fate: Fate, started: Time, finished: Time) -> None:
        self.batch_started[batch] = started
        self.batch_finished[batch] = finished
        self.batch_fate[batch] = fate

    def _code(self, reason: str) -> int:
        code = self._codes.get(reason)
        if code is None:
            code = self._codes[reason] = len(self.reasons)
            self.reasons.append(reason)
        return code
