"""Reports keep what the trials of a live search have reported."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from astrarium.tuning.contract import Trial

NOTHING: Mapping[str, float] = MappingProxyType({})


class Reported(NamedTuple):
    iterations: int
    value: float | None
    metrics: Mapping[str, float] = NOTHING


class Reports:
    """The session asks `worth` for a trial's value when the trial has finished."""

    def __init__(self) -> None:
        self._last: dict[int, Reported] = {}  # by trial
        self._new: list[tuple[int, Reported]] = []  # with their trials, which the session has not heard

    def hear(
        self, trial: int, iterations: int, value: float | None, metrics: Mapping[str, float] = NOTHING
    ) -> None:
        """Take a report. One without a value replaces nothing, unless it tells of another iteration."""
        before = self._last.get(trial)
        if value is not None or before is None or before.iterations != iterations:
            self._last[trial] = Reported(iterations, value, metrics)
            self._new.append((trial, self._last[trial]))

    def take_new(self) -> list[tuple[int, Reported]]:
        """Return the reports since the last call, each with its trial."""
        new = self._new
        self._new = []
        return new

    def last(self, trial: int) -> Reported:
        return self._last.get(trial, Reported(0, None))

    def worth(self, trial: Trial) -> float | None:
        return self.last(trial.id).value
