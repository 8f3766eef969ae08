"""The simulated world of the tuning level says how fast trials train where they are, and what moving costs.

Its truth is Equation 3.2: a share of a GPU is as fast as if all of the GPU's shares were taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil

from astrarium.core.units import Time
from astrarium.tuning.contract import (
    Action,
    Event,
    GpusChanged,
    Pause,
    Put,
    Trial,
    TrialFinished,
    TrialMoved,
    TrialPaused,
)
from astrarium.tuning.runtime import Place, Runtime
from astrarium.tuning.state import TuningState

NEARLY = 1e-6  # of an iteration


@dataclass
class _Truth:
    """A trial had truly done `done` iterations at the instant `since`; each one then takes `iteration`."""

    trial: Trial
    done: float = 0.0
    since: Time = 0
    iteration: float = 0.0  # 0 while the trial does not run
    place: Place | None = None

    def at(self, now: Time) -> float:
        ran = max(0, now - self.since) / self.iteration if self.iteration else 0.0
        return min(float(self.trial.iterations), self.done + ran)

    def boundary(self, now: Time) -> tuple[Time, int]:
        """Return when the running iteration ends, and how many iterations are done then."""
        done = min(self.trial.iterations, ceil(self.at(now) - NEARLY))
        return max(now, self.since + ceil((done - self.done) * self.iteration)), done

    def end(self) -> Time:
        return self.since + max(1, ceil((self.trial.iterations - self.done) * self.iteration))


class TuningWorld:
    """The world turns a policy's actions into future events. *runtime* is the truth for each candidate,
    *moving* the cost of a change of place, *starting* that of the first place. Checkpoints are so many
    iterations apart, for trials whose GPUs are lost."""

    def __init__(
        self,
        runtime: Callable[[int], Runtime],
        moving: Time = 0,
        starting: Time = 0,
        checkpoints: int = 1,
    ) -> None:
        self._runtime, self._moving, self._starting = runtime, moving, starting
        self._checkpoints = checkpoints
        self._trials: dict[int, _Truth] = {}

    def consequences(self, now: Time, action: Action, state: TuningState) -> Iterator[tuple[Time, Event]]:
        if type(action) is Put:
            yield from self._put(now, action, state)
        elif type(action) is Pause:
            yield from self._pause(now, action, state)

    def aftermath(self, now: Time, event: Event, state: TuningState) -> Iterator[tuple[Time, Event]]:
        """Send trials on GPUs that are gone back to their last checkpoints."""
        if type(event) is not GpusChanged:
            return
        for number, truth in self._trials.items():
            row = state.open.get(number)
            if row is not None and truth.iteration and row.place is None:
                done = self._saved(now, truth)
                self._rest(truth, done)
                yield now, TrialPaused(number, row.run, done)

    def _put(self, now: Time, action: Put, state: TuningState) -> Iterator[tuple[Time, Event]]:
        row = state.open[action.trial]
        truth = self._trials.setdefault(action.trial, _Truth(row.trial, row.done))
        if truth.iteration and row.going is None:  # the trial lost its GPUs, and was given others at once
            self._rest(truth, self._saved(now, truth))
        at, done, cost = now, int(truth.done), self._starting
        if truth.iteration:
            at, done = truth.boundary(now)
            cost = self._moving
        if done < row.trial.iterations and truth.iteration:
            yield at, TrialMoved(action.trial, row.run, done)
        truth.done, truth.since = done, at + cost
        truth.iteration = self._runtime(row.trial.candidate).at(action.place.width)
        yield (truth.end() if done < row.trial.iterations else at), TrialFinished(action.trial, row.run)

    def _pause(self, now: Time, action: Pause, state: TuningState) -> Iterator[tuple[Time, Event]]:
        row, truth = state.open[action.trial], self._trials[action.trial]
        at, done = truth.boundary(now)
        self._rest(truth, done)
        if done < row.trial.iterations:
            yield at, TrialPaused(action.trial, row.run, done)
        else:
            yield at, TrialFinished(action.trial, row.run)

    def _saved(self, now: Time, truth: _Truth) -> int:
        return int(truth.at(now)) // self._checkpoints * self._checkpoints

    def _rest(self, truth: _Truth, done: int) -> None:
        truth.done, truth.iteration = done, 0.0
