"""Teams share a cluster by these rules, whatever policy leases GPUs within each of them.

A team has what it is *guaranteed* whenever its jobs can use it; what others leave is lent by *weight*. A
*budget* bounds GPU time, a reservation adds GPUs from an instant to another.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from astrarium.cluster.contract import App
from astrarium.core.quantities import FOREVER, SECOND, Duration, Time, check_above_zero

HOUR = 3600 * SECOND
DAY = 24 * HOUR


class Budget(msgspec.Struct, frozen=True):
    """GPU time that a team may use. What was used is forgotten little by little: GPU time that lies *over*
    back counts 1/e. So a team that always uses `gpu_hours / over` is just at its budget. A team beyond it is
    served last, or with *hard* not at all."""

    gpu_hours: Annotated[float, msgspec.Meta(gt=0)]
    over: Duration = Duration(7 * DAY)
    hard: bool = False

    def __post_init__(self) -> None:
        check_above_zero("over", self.over)

    @property
    def limit(self) -> float:
        """Return the budget in GPU time."""
        return self.gpu_hours * HOUR


class Team(msgspec.Struct, frozen=True):
    """A team has *guaranteed* GPUs; if it may *borrow*, it has what others leave too, by its *weight*."""

    guaranteed: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 0
    weight: Annotated[float, msgspec.Meta(gt=0, le=1_000_000)] = 1.0
    borrow: bool = True
    budget: Budget | None = None


class Reservation(msgspec.Struct, frozen=True):
    """GPUs that a team has from *start* to *end* beyond those guaranteed, again *every* so long if not 0."""

    team: str
    gpus: int
    start: Time
    end: Time
    every: Time = 0

    def holds(self, now: Time) -> bool:
        since = now - self.start
        return since >= 0 and (since % self.every if self.every else since) < self.end - self.start

    def next_start(self, now: Time) -> Time:
        """Return when it starts next, after now; FOREVER where it does not any more."""
        if now < self.start:
            return self.start
        return now + self.every - (now - self.start) % self.every if self.every else FOREVER

    def next_end(self, now: Time) -> Time:
        """Return when it ends next, after now; FOREVER where it does not any more."""
        if not self.every:
            return self.end if now < self.end else FOREVER
        return self.end if now < self.end else now + self.every - (now - self.end) % self.every


class Rules(msgspec.Struct, frozen=True):
    """What holds for all teams. Who has borrowed less comes first; of what was borrowed, half is forgotten
    after *half_life*. What was lent is not taken for another borrower before it was held for a *turn*."""

    teams: dict[str, Team] = {}
    reservations: tuple[Reservation, ...] = ()
    half_life: Time = 7 * DAY
    turn: Time = 600 * SECOND

    def team_of(self, app: App) -> str:
        """Return the team of an app; where none are listed, all are in one."""
        return app.team if self.teams else ""

    def rule(self, team: str) -> Team:
        return self.teams.get(team, Team())

    def reserved(self, now: Time) -> dict[str, int]:
        """Return the GPUs that are reserved at an instant, by team."""
        reserved: dict[str, int] = {}
        for reservation in self.reservations:
            if reservation.holds(now):
                reserved[reservation.team] = reserved.get(reservation.team, 0) + reservation.gpus
        return reserved

    def next_change(self, now: Time) -> Time:
        """Return when a reservation starts or ends next."""
        changes = (
            min(reservation.next_start(now), reservation.next_end(now)) for reservation in self.reservations
        )
        return min(changes, default=FOREVER)
