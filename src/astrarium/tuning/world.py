"""The simulated world of the tuning level says how fast trials train where they are, and what moving costs.

Its truth is Equation 3.2: a share of a GPU is as fast as if all of the GPU's shares were taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil
from typing import TypeAlias

from astrarium.core.quantities import Time
from astrarium.run.simulate import World
from astrarium.tuning import contract
from astrarium.tuning.runtime import Runtime
from astrarium.tuning.state import TuningState

NEARLY = 1e-6  # of an iteration

Later: TypeAlias = Iterator[tuple[Time, contract.Event]]  # what will happen, and when


@dataclass
class _Truth:
    """A trial had truly done `done` iterations at the instant `since`; each one then takes `iteration`."""

    trial: contract.Trial
    done: float = 0.0
    since: Time = 0
    iteration: float = 0.0  # 0 while the trial does not run

    def at(self, now: Time) -> float:
        ran = max(0, now - self.since) / self.iteration if self.iteration else 0.0
        return min(float(self.trial.iterations), self.done + ran)

    def boundary(self, now: Time) -> tuple[Time, int]:
        """Return when the running iteration ends, and how many iterations are done then."""
        done = min(self.trial.iterations, ceil(self.at(now) - NEARLY))
        return max(now, self.since + ceil((done - self.done) * self.iteration)), done

    def end(self) -> Time:
        return self.since + max(1, ceil((self.trial.iterations - self.done) * self.iteration))


class TuningWorld(World[contract.Action, contract.Event, TuningState]):
    """The world turns a policy's actions into future events. *runtime* is the truth for each candidate,
    *moving* the cost of a change of place, *starting* that of the first place. A trial whose GPUs are lost
    keeps the iterations that it had ended."""

    def __init__(self, runtime: Callable[[int], Runtime], moving: Time = 0, starting: Time = 0) -> None:
        self._runtime = runtime
        self._moving = moving
        self._starting = starting
        self._trials: dict[int, _Truth] = {}

    def consequences(self, now: Time, action: contract.Action, state: TuningState) -> Later:
        if type(action) is contract.Put:
            yield from self._put(now, action, state)
        elif type(action) is contract.Pause:
            yield from self._pause(now, action, state)

    def aftermath(self, now: Time, event: contract.Event, state: TuningState) -> Later:
        """Send trials on GPUs that are gone back to their last checkpoints."""
        if type(event) is not contract.GpusChanged:
            return
        for number, truth in self._trials.items():
            row = state.open.get(number)
            if row is not None and truth.iteration and row.place is None:
                done = int(truth.at(now))
                self._rest(truth, done)
                yield now, contract.TrialPaused(number, row.run, done)

    def _put(self, now: Time, action: contract.Put, state: TuningState) -> Later:
        row = state.open[action.trial]
        truth = self._trials.setdefault(action.trial, _Truth(row.trial, row.done))
        if truth.iteration and row.going is None:  # the trial lost its GPUs, and was given others at once
            self._rest(truth, int(truth.at(now)))
        at = now
        done = int(truth.done)
        cost = self._starting
        if truth.iteration:
            at, done = truth.boundary(now)
            cost = self._moving
        if done < row.trial.iterations and truth.iteration:
            yield at, contract.TrialMoved(action.trial, row.run, done)
        truth.done = done
        truth.since = at + cost
        truth.iteration = self._runtime(row.trial.candidate).at(action.place.width)
        yield (
            (truth.end() if done < row.trial.iterations else at),
            contract.TrialFinished(action.trial, row.run),
        )

    def _pause(self, now: Time, action: contract.Pause, state: TuningState) -> Later:
        row = state.open[action.trial]
        truth = self._trials[action.trial]
        at, done = truth.boundary(now)
        self._rest(truth, done)
        if done < row.trial.iterations:
            yield at, contract.TrialPaused(action.trial, row.run, done)
        else:
            yield at, contract.TrialFinished(action.trial, row.run)

    def _rest(self, truth: _Truth, done: int) -> None:
        truth.done = done
        truth.iteration = 0.0
