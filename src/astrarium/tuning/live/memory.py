"""A live tuning run remembers here what is not in the books, and writes its results down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import msgspec

from astrarium.core.units import FOREVER, SECOND, Time
from astrarium.tuning.contract import Trial


class LiveOptions(msgspec.Struct, frozen=True):
    """The options limit a live run. A trial whose runs are lost *retries* times without progress fails. News
    of progress reach the policy no more often than *progress*; in between, the books interpolate. A loop
    waits *patience* for news. A trial fails whose iteration takes more than *longest*, or whose run has not
    ended its first iteration so long after it was started."""

    retries: int = 3
    progress: Time = SECOND
    patience: Time = SECOND // 2
    longest: Time = FOREVER


class Reported(NamedTuple):
    iterations: int
    value: float | None


class Reports:
    """The reports keep the last value of each trial. `worth` is what a live session asks."""

    def __init__(self) -> None:
        self._last: dict[int, Reported] = {}  # by trial

    def hear(self, trial: int, iterations: int, value: float | None) -> None:
        """Take a report. One without a value replaces nothing, unless it tells of another iteration."""
        before = self._last.get(trial)
        if value is not None or before is None or before.iterations != iterations:
            self._last[trial] = Reported(iterations, value)

    def last(self, trial: int) -> Reported:
        return self._last.get(trial, Reported(0, None))

    def worth(self, trial: Trial) -> float | None:
        return self.last(trial.id).value


class EarlierResult(NamedTuple):
    """An earlier run had this result; *error* says why the trial failed, if it did."""

    value: float | None
    error: str = ""


class Journal(Protocol):
    """A journal keeps results and checkpoints of this run and of those that it resumes. A candidate of
    another run counts as the same if its number and its values are the same."""

    def began(self, candidate: int, values: Mapping[str, Any]) -> None:
        """Note that a candidate trains. What is kept of another candidate of that number is of no use."""

    def finished(self, candidate: int, values: Mapping[str, Any], total: int, value: float | None) -> None:
        """Write a result down. When the call returns, a resumed run will find the result."""

    def failed(self, candidate: int, values: Mapping[str, Any], total: int, error: str) -> None:
        """Write a failure down. A resumed run does not try again: the search has gone on without it."""

    def result(self, candidate: int, values: Mapping[str, Any], total: int) -> EarlierResult | None:
        """Return a trial's result if it need not run again: the next trial finds its checkpoint."""

    def kept(self, candidate: int, values: Mapping[str, Any], below: int) -> int:
        """Return the iterations of the newest checkpoint with fewer than *below*; 0 where there is none."""


class NoJournal:
    """A run that nobody will resume keeps no journal."""

    def began(self, candidate: int, values: Mapping[str, Any]) -> None:
        pass

    def finished(self, candidate: int, values: Mapping[str, Any], total: int, value: float | None) -> None:
        pass

    def failed(self, candidate: int, values: Mapping[str, Any], total: int, error: str) -> None:
        pass

    def result(self, candidate: int, values: Mapping[str, Any], total: int) -> EarlierResult | None:
        return None

    def kept(self, candidate: int, values: Mapping[str, Any], below: int) -> int:
        return 0
