"""A journal lets a later run go on with the results and checkpoints of an earlier one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from astrarium.tuning.live.loop.reports import Reported


class EarlierResult(NamedTuple):
    """An earlier run had this result; *error* says why the trial failed, if it did."""

    value: float | None
    error: str = ""


class Journal:
    """A candidate of an earlier run counts as the same if its number and its values are the same. This
    journal keeps nothing, for a run that nobody will resume."""

    def began(self, candidate: int, values: Mapping[str, Any]) -> None:
        """Note that a candidate trains. What is kept of another candidate of that number is of no use."""

    def finished(self, candidate: int, values: Mapping[str, Any], total: int, value: float | None) -> None:
        """Write a result down. When the call returns, a resumed run will find the result."""

    def failed(self, candidate: int, values: Mapping[str, Any], total: int, error: str) -> None:
        """Write a failure down. A resumed run does not try again: the search has gone on without it."""

    def reported(self, candidate: int, values: Mapping[str, Any], report: Reported) -> None:
        """Write a value on the way to a result down: it outlives the process, but perhaps not the machine."""

    def curve(self, candidate: int, values: Mapping[str, Any], upto: int) -> list[Reported]:
        """Return what was reported of the candidate up to so many iterations."""
        return []

    def result(self, candidate: int, values: Mapping[str, Any], total: int) -> EarlierResult | None:
        """Return a trial's result if it need not run again: the next trial finds its checkpoint."""
        return None

    def kept(self, candidate: int, values: Mapping[str, Any], below: int) -> int:
        """Return the iterations of the newest checkpoint with fewer than *below*; 0 where there is none."""
        return 0
