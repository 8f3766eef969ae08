"""How Gavel turns parts of time into leases: in every round, those who are furthest behind their part run.

A policy says which part of the time each app should have its GPUs, its target. At the beginning of a round,
apps are ordered by target over what they have received since targets were last found, and run if they fit.
Targets are found anew when apps have come or gone, but not more often than *refresh*: until then, who has
come has none, and waits. All GPUs are taken to be alike, and an app to need as many as its jobs can use.

Leases are until further notice: they are taken back at the beginning of a round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from astrarium.cluster.actions import Grant, Revoke
from astrarium.cluster.demand import most, usable
from astrarium.cluster.events import Event
from astrarium.cluster.ledger import AppRow
from astrarium.cluster.policies._leased import SPARE, Offer
from astrarium.cluster.rounds import Rounds
from astrarium.cluster.state import ClusterState
from astrarium.core.errors import InputError
from astrarium.core.policy import SetTimer
from astrarium.core.quantities import Duration, write_duration
from astrarium.core.units import FOREVER, SECOND, Time

BEHIND = "it is furthest behind its part of the time"
AHEAD = "others are further behind their parts of the time"


class RoundParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    round: Annotated[Duration, msgspec.Meta(description="how long a round is")] = Duration(120 * SECOND)
    refresh: Annotated[Duration, msgspec.Meta(description="how long targets stand at least")] = Duration(
        1000 * SECOND
    )

    def __post_init__(self) -> None:
        if self.round < 1:
            raise InputError("round", write_duration(self.round), "a duration above 0")


@dataclass
class Account:
    """Of an app: its target, and how long it had run when that was found."""

    target: float
    ran: Time
    behind: float = 0.0  # what it should have received before that, less what it has


class TimeShares:
    def __init__(self, parameters: RoundParameters) -> None:
        self._rounds, self._refresh = Rounds(parameters.round), parameters.refresh
        self._accounts: dict[int, Account] = {}
        self._found_at: Time = 0

    def targets(self, now: Time, rows: Sequence[AppRow], state: ClusterState) -> Sequence[float]:
        """The part of the time that each should have its GPUs."""
        raise NotImplementedError

    def allocate(
        self, now: Time, events: Sequence[Event], state: ClusterState
    ) -> Iterator[Grant | Revoke | SetTimer]:
        if not self._rounds.begins(now, state):
            yield self._rounds.next(now)
            return
        rows = [row for row in state.apps.values() if usable(row, state.floor.size)]
        self._account(now, rows, state)
        chosen = self._chosen(now, rows, state)
        yield from self._take_back(rows, chosen, state)
        yield from _give(chosen, state)
        if len(chosen) < len(rows):
            yield self._rounds.next(now)

    def _account(self, now: Time, rows: Sequence[AppRow], state: ClusterState) -> None:
        """Targets, if it is time for new ones."""
        changed = self._accounts.keys() != {row.app.id for row in rows}
        due = now - self._found_at >= self._refresh or not self._found_at
        if not changed or not (due or self._nobody_has_any(rows)):
            return
        behind = {row.app.id: self._behind(now, row, state) for row in rows if row.app.id in self._accounts}
        found = zip(rows, self.targets(now, rows, state), strict=True)
        self._accounts = {
            row.app.id: Account(target, state.ran(now, row), behind.get(row.app.id, 0.0))
            for row, target in found
        }
        self._found_at = now

    def _nobody_has_any(self, rows: Sequence[AppRow]) -> bool:
        return not any(row.app.id in self._accounts for row in rows)

    def _behind(self, now: Time, row: AppRow, state: ClusterState) -> float:
        account = self._accounts[row.app.id]
        return account.behind + account.target * (now - self._found_at) - _received(now, row, account, state)

    def _chosen(self, now: Time, rows: Sequence[AppRow], state: ClusterState) -> dict[int, int]:
        """Who runs in this round, on how many GPUs. Who does not fit is passed over."""
        left, chosen = state.floor.size, dict[int, int]()
        for row in sorted(rows, key=lambda row: self._place(now, row, state)):
            if row.app.id in self._accounts and left:
                count = usable(row, min(left, demand(row, state)))
                if count:
                    chosen[row.app.id] = count
                    left -= count
        return chosen

    def _place(self, now: Time, row: AppRow, state: ClusterState) -> tuple[float, float, float]:
        """Everybody is taken to have had half a round, so that new targets count from the start."""
        account = self._accounts.get(row.app.id)
        if account is None:
            return 0.0, 0.0, 0.0
        received = _received(now, row, account, state) + self._rounds.length / 2
        return -account.target / received, -account.behind, -account.target

    def _take_back(
        self, rows: Sequence[AppRow], chosen: dict[int, int], state: ClusterState
    ) -> Iterator[Revoke]:
        for row in rows:
            excess = len(row.leases) - chosen.get(row.app.id, 0)
            if excess > 0:
                used = {gpu for job in row.jobs.values() for gpu in job.gpus}
                gpus = sorted(row.leases, key=lambda gpu: (gpu in used, gpu))[:excess]
                yield Revoke(row.app.id, tuple(gpus), SPARE if row.app.id in chosen else AHEAD)


def demand(row: AppRow, state: ClusterState) -> int:
    return max(1, min(most(row), state.floor.size))


def _received(now: Time, row: AppRow, account: Account, state: ClusterState) -> float:
    """For how long it has had its GPUs. A startup does not count."""
    return (state.ran(now, row) - account.ran) / demand(row, state)


def _give(chosen: dict[int, int], state: ClusterState) -> Iterator[Grant]:
    """The largest first: they are the hardest to place."""
    for app, count in sorted(chosen.items(), key=lambda each: -each[1]):
        row = state.apps[app]
        more = count - len(row.leases)
        if more > 0:
            yield Grant(app, tuple(Offer(state).best(row, more)), FOREVER, BEHIND)
