"""A finished run: how busy each GPU was when, how good the best was when, and where everybody ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from astrarium.core.quantities import Time
from astrarium.core.trace import Step
from astrarium.tuning.contract import Action, Pause, Put
from astrarium.tuning.runtime import Place
from astrarium.tuning.search.contract import Candidate
from astrarium.tuning.session import Best, Session
from astrarium.tuning.state import TrialRow, TuningState


class Level(NamedTuple):
    """From this instant on, trials held these parts of the GPUs."""

    at: Time
    shares: dict[int, float]


class Stay(NamedTuple):
    """A trial had that place from *start* to *end*."""

    trial: int
    place: Place
    start: Time
    end: Time


class Decision(NamedTuple):
    """The policy asked for this action at that instant."""

    at: Time
    action: Action


@dataclass
class TuningRecord:
    """*end* is when the last trial ended."""

    policy: str
    end: Time
    levels: list[Level]
    best: list[Best]
    candidates: list[Candidate]
    rows: list[TrialRow]
    over: str
    stays: list[Stay] = field(default_factory=list)  # in order of their ends
    decisions: list[Decision] = field(default_factory=list)
    remembered: int = 0  # trials whose results an earlier run has left

    @property
    def gpus(self) -> list[int]:
        return sorted({gpu for level in self.levels for gpu in level.shares})

    def utilization(self, end: Time | None = None) -> float:
        """Return the part of all GPUs that was held, from the start to *end*."""
        parts = self.windows(1, end)
        held = [part for row in parts.values() for part in row]
        return sum(held) / len(held) if held else 0.0

    def windows(self, count: int, end: Time | None = None) -> dict[int, list[float]]:
        """Return for each GPU the part of it that was held in each of so many windows of equal length."""
        end = self.end if end is None else end
        length = max(1, end) / count
        held = {gpu: [0.0] * count for gpu in self.gpus}
        ends = [*(level.at for level in self.levels[1:]), self.end]
        for level, until in zip(self.levels, ends, strict=False):  # none: it ended before it had begun
            for window, share in _overlaps(level.at, min(until, end), length, count):
                for gpu, part in level.shares.items():
                    held[gpu][window] += part * share
        return held

    def reached(self, target: float, goal: str) -> Time | None:
        """Return when a candidate was as good as that for the first time."""
        sign = 1 if goal == "min" else -1
        return next((best.at for best in self.best if sign * best.value <= sign * target), None)


def _overlaps(start: Time, end: Time, length: float, count: int) -> Iterable[tuple[int, float]]:
    """Yield the windows that a span touches, and which part of each it takes."""
    for window in range(int(start / length), count):
        low = max(start, window * length)
        high = min(end, (window + 1) * length)
        if low >= high:
            return
        yield window, (high - low) / length


class Watch:
    """An engine calls the watch after every step: it notes how the state has changed."""

    def __init__(self, state: TuningState) -> None:
        self._state = state
        self._levels = list[Level]()
        self._at: dict[int, tuple[Place, Time]] = {}  # where each trial is now, and since when
        self._stays: list[Stay] = []
        self._decisions: list[Decision] = []

    def __call__(self, step: Step) -> None:
        holders = self._state.strips.holders
        shares = {gpu: float(sum(parts.values())) for gpu, parts in holders.items()}
        if not self._levels or self._levels[-1].shares != shares:
            self._levels.append(Level(step.now, shares))
        self._note_stays(step.now)
        self._decisions += [
            Decision(step.now, action) for action in step.actions if isinstance(action, Put | Pause)
        ]

    def _note_stays(self, now: Time) -> None:
        """End the stays of trials that are elsewhere than before, and begin new ones."""
        places = {row.trial.id: row.place for row in self._state.running() if row.place is not None}
        for trial, (place, since) in list(self._at.items()):
            if places.get(trial) != place:
                self._stays.append(Stay(trial, place, since, now))
                del self._at[trial]
        for trial, place in places.items():
            self._at.setdefault(trial, (place, now))

    def record(self, policy: str, session: Session) -> TuningRecord:
        rows: Sequence[TrialRow] = list(self._state.ledger.rows.values())
        end = max((row.ended for row in rows), default=0)
        open_stays = [Stay(trial, place, since, end) for trial, (place, since) in self._at.items()]
        return TuningRecord(
            policy,
            end,
            self._levels,
            session.best,
            list(session.candidates.values()),
            list(rows),
            session.over,
            [*self._stays, *open_stays],
            self._decisions,
        )
