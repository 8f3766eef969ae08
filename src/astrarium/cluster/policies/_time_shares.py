"""Parts of time become leases as in Gavel: in every round, those who are furthest behind their part run.

A policy says which part of the time each app should have its GPUs, its target. At the beginning of a round,
apps are ordered by target over what they have received since targets were last found, and run if they fit.
Targets are found anew when apps have come or gone, but not more often than *refresh*: until then, an app that
has come has none, and waits. All GPUs are taken to be alike, and an app to need as many as its jobs can use.

Leases are until further notice: they are taken back at the beginning of a round.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import msgspec

from astrarium.cluster.contract import Allocations, Event, Grant, Revoke
from astrarium.cluster.demand import idle_first, most_usable, needed, usable, wanted
from astrarium.cluster.policies._lease_ends import SPARE
from astrarium.cluster.policies._offer import Offer
from astrarium.cluster.policies._round_clock import RoundClock
from astrarium.cluster.state import AppRow, ClusterState
from astrarium.core.quantities import FOREVER, SECOND, Duration, Time, check_above_zero

BEHIND = "it is furthest behind its part of the time"
AHEAD = "others are further behind their parts of the time"


class RoundParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    round: Annotated[Duration, msgspec.Meta(description="how long a round is")] = Duration(120 * SECOND)
    refresh: Annotated[Duration, msgspec.Meta(description="how long targets stand at least")] = Duration(
        1000 * SECOND
    )

    def __post_init__(self) -> None:
        check_above_zero("round", self.round)


@dataclass
class TargetAccount:
    """The target of an app, and how long the app had run when the target was found."""

    target: float
    ran: Time
    behind: float = 0.0  # what it should have received before that, less what it has
    order: int = 0  # of arrival


class QueuePlace(NamedTuple):
    """The place of an app in the queue: what it should have had over what it has received comes first."""

    rank: float
    ahead: float  # of its part of the time, when targets were last found
    untargeted: float
    order: int  # of arrival
    fewest: int  # GPUs with which it runs anything
    app: int


class TimeShares:
    """A policy of this kind gives each app its target part of the time, in rounds. An app that does not run
    keeps its place in the queue: only those that ran in the last round are placed anew."""

    def __init__(self, parameters: RoundParameters) -> None:
        self._rounds = RoundClock(parameters.round)
        self._refresh = parameters.refresh
        self._accounts: dict[int, TargetAccount] = {}
        self._found_at: Time = 0
        self._queue: list[QueuePlace] = []  # those who have accounts and did not run, in order
        self._ran: dict[int, int] = {}  # those who did, with their GPUs

    def targets(self, now: Time, rows: Sequence[AppRow], state: ClusterState) -> Sequence[float]:
        """Return the part of the time that each app should have its GPUs."""
        raise NotImplementedError

    def decide(self, now: Time, events: Sequence[Event], state: ClusterState) -> Allocations:
        if not self._rounds.begins(now, state):
            yield self._rounds.next(now)
            return
        if not self._account(now, state):
            self._enqueue(now, self._ran, state)
        chosen = self._ran = self._chosen(state)
        yield from self._take_back(chosen, state)
        yield from _give(chosen, state)
        if any(app not in chosen and usable(row, state.floor.size) for app, row in state.apps.items()):
            yield self._rounds.next(now)

    def standing(self, now: Time, state: ClusterState) -> list[tuple[int, str]]:
        """Return who wants GPUs, furthest behind its part first; who has no part yet comes last."""
        wanting = [app for app, row in state.apps.items() if wanted(row)]
        placed = sorted(self._place(now, state.apps[app], state) for app in wanting if app in self._accounts)
        reasons = [(place.app, self._in_words(now, place.app, state)) for place in placed]
        return reasons + [
            (app, "it has no part of the time yet") for app in wanting if app not in self._accounts
        ]

    def _in_words(self, now: Time, app: int, state: ClusterState) -> str:
        account = self._accounts[app]
        had = _received(now, state.apps[app], account, state) / max(1, now - self._found_at)
        return f"its part of the time is {account.target:.2f}, and it has had {max(0.0, had):.2f}"

    def _account(self, now: Time, state: ClusterState) -> bool:
        """Find targets, if it is time for new ones, and return whether it was; all apps are queued then."""
        due = now - self._found_at >= self._refresh or not self._found_at
        if not due and not self._accounts.keys().isdisjoint(state.apps):
            return False
        rows = [row for row in state.apps.values() if usable(row, state.floor.size)]
        if self._accounts.keys() == {row.app.id for row in rows}:
            return False
        behind = {row.app.id: self._behind(now, row, state) for row in rows if row.app.id in self._accounts}
        targets = zip(rows, self.targets(now, rows, state), strict=True)
        self._accounts = {
            row.app.id: TargetAccount(target, state.ran(now, row), behind.get(row.app.id, 0.0), order)
            for order, (row, target) in enumerate(targets)
        }
        self._found_at = now
        self._queue.clear()
        self._enqueue(now, self._accounts, state)
        return True

    def _enqueue(self, now: Time, apps: Iterable[int], state: ClusterState) -> None:
        places = [self._place(now, state.apps[app], state) for app in apps if app in state.apps]
        self._queue += sorted(places)
        self._queue.sort()  # two runs in order: it takes linear time

    def _behind(self, now: Time, row: AppRow, state: ClusterState) -> float:
        account = self._accounts[row.app.id]
        return account.behind + account.target * (now - self._found_at) - _received(now, row, account, state)

    def _chosen(self, state: ClusterState) -> dict[int, int]:
        """Take those from the queue who run in this round, with their GPUs; who does not fit stays."""
        left = state.floor.size
        chosen = dict[int, int]()
        passed = 0
        stay: list[QueuePlace] = []
        for place in self._queue:
            if not left:
                break
            passed += 1
            if place.fewest > left:
                stay.append(place)
                continue
            row = state.apps.get(place.app)
            count = needed(row, left) if row is not None else 0
            if count:
                chosen[place.app] = count
                left -= count
            elif row is not None:
                stay.append(place)
        self._queue[:passed] = stay
        return chosen

    def _place(self, now: Time, row: AppRow, state: ClusterState) -> QueuePlace:
        """Return a place in the queue, as if all had had half a round: new targets count from the start."""
        account = self._accounts[row.app.id]
        received = _received(now, row, account, state) + self._rounds.length / 2
        rank = -account.target / received
        return QueuePlace(rank, -account.behind, -account.target, account.order, _fewest(row), row.app.id)

    def _take_back(self, chosen: dict[int, int], state: ClusterState) -> Iterator[Revoke]:
        for app in sorted(set(state.holder.values())):
            row = state.apps[app]
            excess = len(row.leases) - chosen.get(app, 0)
            if excess > 0:
                yield Revoke(app, idle_first(row)[:excess], SPARE if app in chosen else AHEAD)


def capped_demand(row: AppRow, state: ClusterState) -> int:
    """Return how many GPUs an app can use at once in this cluster."""
    return max(1, min(most_usable(row), state.floor.size))


def _fewest(row: AppRow) -> int:
    """Return how many GPUs an app needs at least to run anything."""
    return min((job.job.least for job in row.unfinished()), default=0)


def _received(now: Time, row: AppRow, account: TargetAccount, state: ClusterState) -> float:
    """Return for how long an app has had its GPUs. A startup does not count."""
    return (state.ran(now, row) - account.ran) / capped_demand(row, state)


def _give(chosen: dict[int, int], state: ClusterState) -> Iterator[Grant]:
    """Yield grants, the largest first: they are the hardest to place."""
    for app, count in sorted(chosen.items(), key=lambda entry: -entry[1]):
        row = state.apps[app]
        more = count - len(row.leases)
        if more > 0:
            yield Grant(app, tuple(Offer(state).best(row, more)), FOREVER, BEHIND)
