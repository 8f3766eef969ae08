"""The books of the tuning level say which trials exist, where they run and how far they are.

No GPU is given out twice: the place that a trial leaves stays its own until the trial has left. Run numbers
identify late news, which is ignored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from astrarium.core.errors import BrokenBooks, InvalidAction
from astrarium.core.policy import Handlers, LevelState
from astrarium.core.quantities import Time
from astrarium.tuning import contract
from astrarium.tuning.contract import Trial
from astrarium.tuning.runtime import Place, Runtime, Width
from astrarium.tuning.strips import Strips


class Outcome(IntEnum):
    OPEN = 0
    FINISHED = 1
    FAILED = 2
    WITHDRAWN = 3


@dataclass
class TrialRow:
    """A trial has a row from its arrival on, also after its end; instants are -1 until they come."""

    trial: Trial
    arrived: Time
    started: Time = -1
    ended: Time = -1
    outcome: Outcome = Outcome.OPEN
    reason: str = ""
    done: int = 0  # iterations, at the instant `since`
    part: float = 0.0  # of the next iteration, estimated at that instant
    since: Time = 0
    place: Place | None = None  # where the trial runs
    going: Place | None = None  # where the trial will run from its next iteration on
    pausing: bool = False
    run: int = 0
    moves: int = 0
    gpu_time: float = 0.0

    @property
    def waits(self) -> bool:
        return self.place is None and self.outcome is Outcome.OPEN

    @property
    def settled(self) -> bool:
        """Tell whether the trial runs and is to go on where it is."""
        return self.place is not None and self.going is None and not self.pausing


@dataclass
class Ledger:
    rows: dict[int, TrialRow] = field(default_factory=dict)


class TuningState(LevelState[contract.Event, contract.Action]):
    """The state knows estimates only: *moving* is what a change of place is believed to cost."""

    level = "tuning"

    def __init__(self, moving: Time = 0, runtime: Runtime | None = None) -> None:
        self.moving = moving
        self._usual = runtime or Runtime()
        self.strips = Strips()
        self.ledger = Ledger()
        self.open: dict[int, TrialRow] = {}
        self._runtimes: dict[int, Runtime] = {}  # by candidate
        events: Handlers = {
            contract.GpusChanged: self._gpus_changed,
            contract.GroupArrived: self._arrived,
            contract.RuntimeMeasured: self._measured,
            contract.MovingMeasured: self._moving_measured,
            contract.TrialStepped: self._stepped,
            contract.TrialMoved: self._moved,
            contract.TrialPaused: self._paused,
            contract.TrialFinished: self._finished,
            contract.TrialFailed: self._failed,
            contract.TrialWithdrawn: self._withdrawn,
        }
        actions: Handlers = {
            contract.Put: self._put,
            contract.Pause: self._pause,
        }
        super().__init__(events, actions)

    def close(self, now: Time) -> None:
        for row in list(self.open.values()):
            self._end(now, row, Outcome.WITHDRAWN, "the run ended before the trial did")

    @property
    def gpus(self) -> int:
        return len(self.strips.holders)

    def waiting(self) -> list[TrialRow]:
        """Return the rows of trials that wait, in order of arrival."""
        return [row for row in self.open.values() if row.waits]

    def running(self) -> list[TrialRow]:
        return [row for row in self.open.values() if row.place is not None]

    def runtime(self, row: TrialRow) -> Runtime:
        """Return the estimated runtime of a candidate; the mean of the others if it was never measured."""
        measured = self._runtimes.get(row.trial.candidate)
        return measured or self._usual

    def left(self, now: Time, row: TrialRow) -> float:
        """Return the iterations that the trial still has to do, interpolated between two of its reports."""
        done = row.done + row.part
        if row.place is not None:
            done += max(0, now - row.since) / self.runtime(row).at(row.place.width)
        return max(0.0, row.trial.iterations - done)

    def time_left(self, now: Time, row: TrialRow, width: Width) -> float:
        """Return h(w): the time that the trial would still take if it ran on so many GPUs from now on."""
        return self.left(now, row) * self.runtime(row).at(width)

    def _gpus_changed(self, now: Time, event: contract.GpusChanged) -> None:
        for trial in self.strips.change(event.gpus):
            self.open[trial].run += 1  # the run is over: news of its end would be late
            self._stop(now, self.open[trial])

    def _arrived(self, now: Time, event: contract.GroupArrived) -> None:
        for trial in event.trials:
            self.open[trial.id] = self.ledger.rows[trial.id] = TrialRow(trial, now, since=now)

    def _measured(self, now: Time, event: contract.RuntimeMeasured) -> None:
        """Count the iterations done so far at the old estimate, then change it. A trial that is moving has
        done nothing meanwhile."""
        for row in self.running():
            if row.trial.candidate == event.candidate and row.since < now:
                done = row.trial.iterations - self.left(now, row)
                self._report(now, row, int(done), done % 1)
        self._runtimes[event.candidate] = event.runtime
        known = list(self._runtimes.values())
        self._usual = Runtime(
            round(sum(runtime.iteration for runtime in known) / len(known)),
            sum(runtime.packing for runtime in known) / len(known),
            sum(runtime.scaling for runtime in known) / len(known),
        )

    def _moving_measured(self, now: Time, event: contract.MovingMeasured) -> None:
        self.moving = event.moving

    def _stepped(self, now: Time, event: contract.TrialStepped) -> None:
        row = self._current(event.trial, event.run)
        if row is not None and row.place is not None:
            self._report(now, row, event.done)

    def _moved(self, now: Time, event: contract.TrialMoved) -> None:
        row = self._current(event.trial, event.run)
        if row is None or row.going is None:
            return
        self._report(now, row, event.done)
        row.place = row.going
        row.going = None
        row.since = now + self.moving
        row.moves += 1
        self.strips.settle(event.trial, row.place)

    def _paused(self, now: Time, event: contract.TrialPaused) -> None:
        """Pause a trial, also one whose GPUs were lost: only now the iterations it keeps are known."""
        row = self._current(event.trial, event.run)
        if row is not None:
            self._stop(now, row)
            row.done = event.done

    def _finished(self, now: Time, event: contract.TrialFinished) -> None:
        row = self._current(event.trial, event.run)
        if row is not None:
            self._report(now, row, row.trial.iterations)
            self._end(now, row, Outcome.FINISHED)

    def _failed(self, now: Time, event: contract.TrialFailed) -> None:
        row = self._current(event.trial, event.run)
        if row is not None:
            self._end(now, row, Outcome.FAILED, event.error)

    def _withdrawn(self, now: Time, event: contract.TrialWithdrawn) -> None:
        row = self.open.get(event.trial)
        if row is not None:
            self._end(now, row, Outcome.WITHDRAWN, "the search wants it no more")

    def _put(self, now: Time, action: contract.Put) -> None:
        row = self._changeable(action, action.trial)
        if not self.strips.fits(action.trial, action.place):
            raise InvalidAction(f"{action!r}: there is no room")
        self.strips.take(action.trial, action.place)
        row.run += 1
        if row.place is None:
            row.place = action.place
            row.since = now
            row.started = now if row.started < 0 else row.started
        else:
            row.going = action.place

    def _pause(self, now: Time, action: contract.Pause) -> None:
        row = self._changeable(action, action.trial)
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

    def _holds(self, trial: int, place: Place) -> bool:
        shares = [self.strips.holders.get(gpu, {}).get(trial, 0) for gpu in place.gpus]
        return all(share >= place.share for share in shares)

    def _current(self, trial: int, run: int) -> TrialRow | None:
        """Return the row of a run that still goes on; None for late news."""
        row = self.open.get(trial)
        return row if row is not None and row.run == run else None

    def _changeable(self, action: contract.Action, trial: int) -> TrialRow:
        row = self.open.get(trial)
        if row is None or row.going is not None or row.pausing:
            raise InvalidAction(f"{action!r}: it has ended, or is about to move or to pause")
        return row

    def _report(self, now: Time, row: TrialRow, done: int, part: float = 0.0) -> None:
        if row.place is not None:
            row.gpu_time += float(row.place.width) * max(0, now - row.since)
        row.done = done
        row.part = part
        row.since = now

    def _stop(self, now: Time, row: TrialRow) -> None:
        self._report(now, row, row.done)
        row.place = row.going = None
        row.pausing = False
        self.strips.leave(row.trial.id)

    def _end(self, now: Time, row: TrialRow, outcome: Outcome, reason: str = "") -> None:
        self._stop(now, row)
        row.ended = now
        row.outcome = outcome
        row.reason = reason
        del self.open[row.trial.id]
