"""The books of the tuning level: which trials there are, where they run, and how far they are.

No GPU is given out twice: what a trial leaves is its own until it has left. Late news is recognized by run
numbers, and ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from astrarium.core.errors import BrokenBooks, InvalidAction
from astrarium.core.policy import SetTimer, TimerFired
from astrarium.core.units import Time
from astrarium.tuning.actions import Action, Pause, Put
from astrarium.tuning.events import (
    Event,
    GpusChanged,
    GroupArrived,
    MovingMeasured,
    RuntimeMeasured,
    TrialFailed,
    TrialFinished,
    TrialMoved,
    TrialPaused,
    TrialStepped,
    TrialWithdrawn,
)
from astrarium.tuning.ledger import Ledger, Outcome, TrialRow
from astrarium.tuning.places import Place, Width
from astrarium.tuning.runtime import Runtime
from astrarium.tuning.strips import Strips


class TuningState:
    """*moving* is what a change of place is believed to cost a trial."""

    def __init__(self, moving: Time = 0, runtime: Runtime | None = None) -> None:
        self.moving, self._usual = moving, runtime or Runtime()
        self.strips, self.ledger = Strips(), Ledger()
        self.open: dict[int, TrialRow] = {}
        self._runtimes: dict[int, Runtime] = {}  # by candidate
        self._on_event: dict[type, Callable[[Time, Any], None]] = {
            GpusChanged: self._gpus_changed,
            GroupArrived: self._arrived,
            RuntimeMeasured: self._measured,
            MovingMeasured: self._moving_measured,
            TrialStepped: self._stepped,
            TrialMoved: self._moved,
            TrialPaused: self._paused,
            TrialFinished: self._finished,
            TrialFailed: self._failed,
            TrialWithdrawn: self._withdrawn,
            TimerFired: _nothing,
        }
        self._on_action: dict[type, Callable[[Time, Any], None]] = {
            Put: self._put,
            Pause: self._pause,
            SetTimer: _nothing,
        }

    def apply(self, now: Time, event: Event) -> None:
        self._on_event[type(event)](now, event)

    def commit(self, now: Time, action: Action) -> None:
        handler = self._on_action.get(type(action))
        if handler is None:
            raise InvalidAction(f"{action!r} is not an action of the tuning level")
        handler(now, action)

    def close(self, now: Time) -> None:
        for row in list(self.open.values()):
            self._end(now, row, Outcome.WITHDRAWN, "the run ended before the trial did")

    # what a policy asks

    @property
    def gpus(self) -> int:
        return len(self.strips.holders)

    def waiting(self) -> list[TrialRow]:
        """In order of arrival."""
        return [row for row in self.open.values() if row.waits]

    def running(self) -> list[TrialRow]:
        return [row for row in self.open.values() if row.place is not None]

    def runtime(self, row: TrialRow) -> Runtime:
        """Of a candidate that was never measured: as others are on the mean."""
        found = self._runtimes.get(row.trial.candidate)
        return found or self._usual

    def left(self, now: Time, row: TrialRow) -> float:
        """Iterations that it still has to do, as far as one can tell between two of its reports."""
        done = row.done + row.part
        if row.place is not None:
            done += max(0, now - row.since) / self.runtime(row).at(row.place.width)
        return max(0.0, row.trial.iterations - done)

    def time_left(self, now: Time, row: TrialRow, width: Width) -> float:
        """h(w): if it ran on so many GPUs from now on."""
        return self.left(now, row) * self.runtime(row).at(width)

    # events

    def _gpus_changed(self, now: Time, event: GpusChanged) -> None:
        for trial in self.strips.change(event.gpus):
            self.open[trial].run += 1  # the run is over: news of its end would be late
            self._stop(now, self.open[trial])

    def _arrived(self, now: Time, event: GroupArrived) -> None:
        for trial in event.trials:
            self.open[trial.id] = self.ledger.rows[trial.id] = TrialRow(trial, now, since=now)

    def _measured(self, now: Time, event: RuntimeMeasured) -> None:
        """What is done so far was done as fast as was believed then. Who is on its way has done nothing."""
        for row in self.running():
            if row.trial.candidate == event.candidate and row.since < now:
                done = row.trial.iterations - self.left(now, row)
                self._report(now, row, int(done), done % 1)
        self._runtimes[event.candidate] = event.runtime
        known = list(self._runtimes.values())
        means = (sum(values) / len(known) for values in zip(*map(_numbers, known), strict=True))
        iteration, packing, scaling = means
        self._usual = Runtime(round(iteration), packing, scaling)

    def _moving_measured(self, now: Time, event: MovingMeasured) -> None:
        self.moving = event.moving

    def _stepped(self, now: Time, event: TrialStepped) -> None:
        row = self._heard(event.trial, event.run)
        if row is not None and row.place is not None:
            self._report(now, row, event.done)

    def _moved(self, now: Time, event: TrialMoved) -> None:
        row = self._heard(event.trial, event.run)
        if row is None or row.going is None:
            return
        self._report(now, row, event.done)
        row.place, row.going = row.going, None
        row.since = now + self.moving
        row.moves += 1
        self.strips.settle(event.trial, row.place)

    def _paused(self, now: Time, event: TrialPaused) -> None:
        """Also of one whose GPUs were lost: what is done is heard only then."""
        row = self._heard(event.trial, event.run)
        if row is not None:
            self._stop(now, row)
            row.done = event.done

    def _finished(self, now: Time, event: TrialFinished) -> None:
        row = self._heard(event.trial, event.run)
        if row is not None:
            self._report(now, row, row.trial.iterations)
            self._end(now, row, Outcome.FINISHED)

    def _failed(self, now: Time, event: TrialFailed) -> None:
        row = self._heard(event.trial, event.run)
        if row is not None:
            self._end(now, row, Outcome.FAILED, event.error)

    def _withdrawn(self, now: Time, event: TrialWithdrawn) -> None:
        row = self.open.get(event.trial)
        if row is not None:
            self._end(now, row, Outcome.WITHDRAWN, "the search wants it no more")

    # actions

    def _put(self, now: Time, action: Put) -> None:
        row = self._own(action, action.trial)
        if not self.strips.fits(action.trial, action.place):
            raise InvalidAction(f"{action!r}: there is no room")
        self.strips.take(action.trial, action.place)
        row.run += 1
        if row.place is None:
            row.place, row.since = action.place, now
            row.started = now if row.started < 0 else row.started
        else:
            row.going = action.place

    def _pause(self, now: Time, action: Pause) -> None:
        row = self._own(action, action.trial)
        if row.place is None:
            raise InvalidAction(f"{action!r}: it does not run")
        row.run += 1
        row.pausing = True

    def validate(self) -> None:
        for gpu, holders in self.strips.holders.items():
            if sum(holders.values()) > 1:
                raise BrokenBooks(f"GPU {gpu} is given out more than once: {holders}")
        for trial, row in self.open.items():
            for place in (row.place, row.going):
                if place is not None and not self._holds(trial, place):
                    raise BrokenBooks(f"trial {trial} runs where it has no share: {place}")
        held = {trial for holders in self.strips.holders.values() for trial in holders}
        if held != {row.trial.id for row in self.running()}:
            raise BrokenBooks("a share belongs to a trial that does not run")

    # helpers

    def _holds(self, trial: int, place: Place) -> bool:
        shares = [self.strips.holders.get(gpu, {}).get(trial, 0) for gpu in place.gpus]
        return all(share >= place.share for share in shares)

    def _heard(self, trial: int, run: int) -> TrialRow | None:
        row = self.open.get(trial)
        return row if row is not None and row.run == run else None

    def _own(self, action: Action, trial: int) -> TrialRow:
        row = self.open.get(trial)
        if row is None or row.going is not None or row.pausing:
            raise InvalidAction(f"{action!r}: it has ended, or is about to move or to pause")
        return row

    def _report(self, now: Time, row: TrialRow, done: int, part: float = 0.0) -> None:
        if row.place is not None:
            row.gpu_time += float(row.place.width) * max(0, now - row.since)
        row.done, row.part, row.since = done, part, now

    def _stop(self, now: Time, row: TrialRow) -> None:
        self._report(now, row, row.done)
        row.place = row.going = None
        row.pausing = False
        self.strips.leave(row.trial.id)

    def _end(self, now: Time, row: TrialRow, outcome: Outcome, reason: str = "") -> None:
        self._stop(now, row)
        row.ended, row.outcome, row.reason = now, outcome, reason
        del self.open[row.trial.id]


def _numbers(runtime: Runtime) -> tuple[float, float, float]:
    return runtime.iteration, runtime.packing, runtime.scaling


def _nothing(now: Time, what: object) -> None:
    """Nothing to book."""
