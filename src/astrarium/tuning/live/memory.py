"""What a live tuning run remembers beside the books, and where results are written down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import msgspec

from astrarium.core.units import FOREVER, SECOND, Time
from astrarium.tuning.contract import Trial


class Options(msgspec.Struct, frozen=True):
    """A trial whose runs are lost *retries* times without getting further fails. News of progress reach the
    policy no more often than *progress*; in between, the books reckon. A loop waits *patience* for news. A
    trial fails whose iteration takes more than *longest*, or that has not ended its first one so long after
    its run was started."""

    retries: int = 3
    progress: Time = SECOND
    patience: Time = SECOND // 2
    longest: Time = FOREVER


class Reported(NamedTuple):
    iterations: int
    value: float | None


class Reports:
    """What each trial was worth when it last said so. `worth` is what a live session asks."""

    def __init__(self) -> None:
        self._last: dict[int, Reported] = {}  # by trial

    def hear(self, trial: int, iterations: int, value: float | None) -> None:
        """One without a value takes nothing back, unless there is something newer to say."""
        before = self._last.get(trial)
        if value is not None or before is None or before.iterations != iterations:
            self._last[trial] = Reported(iterations, value)

    def last(self, trial: int) -> Reported:
        return self._last.get(trial, Reported(0, None))

    def worth(self, trial: Trial) -> float | None:
        return self.last(trial.id).value


class Known(NamedTuple):
    """A result of an earlier run; *error*: it failed with that."""

    value: float | None
    error: str = ""


class Journal(Protocol):
    """Results and checkpoints of this run and of those it goes on with. A candidate of another run counts as
    the same where its number and its values are."""

    def began(self, candidate: int, values: Mapping[str, Any]) -> None:
        """It trains. What is kept of another candidate of that number is of no use."""

    def finished(self, candidate: int, values: Mapping[str, Any], total: int, value: float | None) -> None:
        """When it returns, it will be found again."""

    def failed(self, candidate: int, values: Mapping[str, Any], total: int, error: str) -> None:
        """Neither is it tried again by a run that goes on: the search has gone on without it."""

    def result(self, candidate: int, values: Mapping[str, Any], total: int) -> Known | None:
        """Of a trial that need not be run again: what comes next finds its checkpoint."""

    def kept(self, candidate: int, values: Mapping[str, Any], below: int) -> int:
        """Iterations of its newest checkpoint with fewer than *below*; 0: there is none."""


class NoJournal:
    """For runs that nobody will go on with."""

    def began(self, candidate: int, values: Mapping[str, Any]) -> None:
        pass

    def finished(self, candidate: int, values: Mapping[str, Any], total: int, value: float | None) -> None:
        pass

    def failed(self, candidate: int, values: Mapping[str, Any], total: int, error: str) -> None:
        pass

    def result(self, candidate: int, values: Mapping[str, Any], total: int) -> Known | None:
        return None

    def kept(self, candidate: int, values: Mapping[str, Any], below: int) -> int:
        return 0
