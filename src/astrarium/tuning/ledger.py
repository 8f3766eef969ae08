"""Where trials end up: one row each."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from astrarium.core.units import Time
from astrarium.tuning.places import Place
from astrarium.tuning.trials import Trial


class Outcome(IntEnum):
    OPEN = 0
    FINISHED = 1
    FAILED = 2
    WITHDRAWN = 3


@dataclass
class TrialRow:
    """Instants are -1 until they come."""

    trial: Trial
    arrived: Time
    started: Time = -1
    ended: Time = -1
    outcome: Outcome = Outcome.OPEN
    reason: str = ""
    done: int = 0  # iterations, at the instant `since`
    part: float = 0.0  # of the next one, as reckoned then
    since: Time = 0
    place: Place | None = None  # where it runs
    going: Place | None = None  # where it will run from its next iteration on
    pausing: bool = False
    run: int = 0
    moves: int = 0
    gpu_time: float = 0.0

    @property
    def waits(self) -> bool:
        return self.place is None and self.outcome is Outcome.OPEN

    @property
    def settled(self) -> bool:
        """It runs, and is to go on where it is."""
        return self.place is not None and self.going is None and not self.pausing


@dataclass
class Ledger:
    rows: dict[int, TrialRow] = field(default_factory=dict)
