"""The rivals of Themis (its section 6.1) lease free GPUs to the apps that rank best.

Whenever GPUs are free, apps that want some are ranked, and the best get what they can use. Of equals who has
fewest goes first, then who has had so few for longest: by arrival, equals would be served one by one. A gang
runs whole or not at all. GPUs are kept for the first in line until its gang is whole, which takes no longer
than a lease; a policy that `skips` lets those pass who fit, and large gangs may wait while small ones come.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Literal

import msgspec

from astrarium.cluster import contract
from astrarium.cluster.demand import idle_first, most_usable, needed, usable
from astrarium.cluster.policies._lease_ends import SPARE, stood_on
from astrarium.cluster.policies._offer import Offer
from astrarium.cluster.policies._queue import QueueEntry, RankedQueue, WaitingApps, idle
from astrarium.cluster.state import AppRow, ClusterState
from astrarium.core.quantities import FOREVER, SECOND, Duration, Time, check_above_zero

RENEWED = "nobody else wants them"
OF_AN_APP = (contract.LeaseExpired, contract.JobFinished, contract.JobStopped, contract.AppWithdrawn)
OF_ALL = (contract.MachineJoined, contract.MachineLost, contract.GpuFailed, contract.GpuRepaired)


class LeaseParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    lease: Annotated[Duration, msgspec.Meta(description="how long GPUs are leased")] = Duration(600 * SECOND)
    gangs: Annotated[
        Literal["wait", "skip"],
        msgspec.Meta(description="GPUs wait for the gang of the first in line, or others may skip it"),
    ] = "wait"

    def __post_init__(self) -> None:
        check_above_zero("lease", self.lease)


class Leased:
    """A policy of this kind leases free GPUs to the apps of the smallest *rank*. *fixed*: a rank does not
    depend on what others have taken meanwhile. *in_order*: of two apps that hold nothing and whose jobs are
    alike, the one with the smaller `at_best` has the smaller rank too, whatever is offered."""

    Parameters: type[msgspec.Struct] = LeaseParameters
    fixed = True
    in_order = True
    why = ""

    def __init__(self, parameters: LeaseParameters) -> None:
        self._lease = parameters.lease
        self._skips = parameters.gangs == "skip"
        self._wanting: dict[int, None] = {}  # apps that may want GPUs, besides those that wait
        self._waiting = WaitingApps()

    def rank(self, now: Time, row: AppRow, offer: Offer) -> float:
        """Return the rank of an app: the least comes first."""
        raise NotImplementedError

    def at_best(self, now: Time, row: AppRow, state: ClusterState) -> float:
        """Return a bound below the rank of an app that holds nothing, as long as it waits."""
        return self.rank(now, row, Offer(state))

    def rank_in_words(self, rank: float) -> str:
        raise NotImplementedError

    def standing(self, now: Time, state: ClusterState) -> list[tuple[int, str]]:
        """Return who wants GPUs, first in line first."""
        offer = Offer(state)
        wanting = [row for row in state.apps.values() if most_usable(row) > len(row.leases)]
        ranked = sorted(self._entry(now, row, offer) for row in wanting)
        return [(entry.app, self.rank_in_words(entry.rank)) for entry in ranked]

    def _entry(self, now: Time, row: AppRow, offer: Offer) -> QueueEntry:
        return QueueEntry(self.rank(now, row, offer), offer.count(row), row.counted, row.app.id)

    def portion(self, row: AppRow, offer: Offer) -> int:
        """Return how many GPUs an app gets at a time: all that it can use, unless said otherwise."""
        return offer.wants(row)

    def pick(self, now: Time, row: AppRow, count: int, offer: Offer) -> list[int]:
        return offer.best(row, count)

    def stays(self, row: AppRow, state: ClusterState) -> bool:
        """Return whether the jobs of an app are best left where they are, if they may."""
        return True

    def decide(
        self, now: Time, events: Sequence[contract.Event], state: ClusterState
    ) -> contract.Allocations:
        if not self._wanting and not self._waiting and self._can_renew(events, state):
            for event in events:
                if type(event) is contract.LeaseExpired:
                    yield contract.Grant(event.app, event.gpus, now + self._lease, RENEWED)
            return
        touched = self._heard(events, state)
        expired = [event for event in events if type(event) is contract.LeaseExpired]
        yield from self._spared(touched - {event.app for event in expired}, state)
        warm = [gpu for event in expired for gpu in event.gpus]
        while True:
            yield from self._hand_out(now, state, warm)
            returned = list(self._spared(touched, state))  # gangs that have lost a part
            yield from returned
            if not returned:
                return

    def _can_renew(self, events: Sequence[contract.Event], state: ClusterState) -> bool:
        """Return whether leases have ended, nothing else happened, and jobs still stand on all GPUs."""
        for event in events:
            if type(event) is not contract.LeaseExpired:
                return False
            if not stood_on(event, state) or not self.stays(state.apps[event.app], state):
                return False
        return True

    def _heard(self, events: Sequence[contract.Event], state: ClusterState) -> set[int]:
        named: set[int] = set()
        for event in events:
            if type(event) is contract.AppArrived:
                named.add(event.app.id)
            elif type(event) in OF_ALL:
                named.update(state.apps)
            elif isinstance(event, OF_AN_APP):
                named.add(event.app)
        for app in sorted(named):
            self._look_at(app)
        return named

    def _look_at(self, app: int) -> None:
        """Note that something has changed for an app."""
        self._waiting.drop(app)
        self._wanting[app] = None

    def _spared(self, apps: Iterable[int], state: ClusterState) -> Iterator[contract.Revoke]:
        for app in sorted(apps):
            row = state.apps.get(app)
            spare = len(row.leases) - needed(row, len(row.leases)) if row is not None else 0
            if row is not None and spare:
                yield contract.Revoke(app, idle_first(row)[:spare], SPARE)

    def _hand_out(self, now: Time, state: ClusterState, warm: Sequence[int]) -> Iterator[contract.Grant]:
        offer = Offer(state, warm)
        if offer:
            self._fill(now, offer)
        until = min(now + self._lease, FOREVER)
        for app, gpus in offer.won.items():
            row = state.apps[app]
            self._look_at(app)
            if most_usable(row) <= len(row.leases) + len(gpus):
                del self._wanting[app]
            yield contract.Grant(app, tuple(gpus), until, self.why)

    def _fill(self, now: Time, offer: Offer) -> None:
        queue = self._ranked_queue(now, offer)
        while queue and offer:
            entry = queue.pop()
            app = entry.app
            row = offer.state.apps[app]
            if not self.fixed and (again := self._entry(now, row, offer)) > entry:
                queue.push(again)
                if not self.in_order and self.portion(row, offer) > 0:
                    queue.follow(app)
                continue
            count = self.portion(row, offer)
            if count > 0:
                queue.follow(app)
                offer.take(row, self.pick(now, row, count, offer))
                if offer and most_usable(row) > offer.count(row) and offer.wants(row) > 0:
                    queue.push(self._entry(now, row, offer))
            elif not self._skips and _could_run(row, offer):
                return  # and else, none of its kind can use what is left

    def _ranked_queue(self, now: Time, offer: Offer) -> RankedQueue:
        apps = offer.state.apps
        ranked = []
        for app in list(self._wanting):
            row = apps.get(app)
            if row is None or most_usable(row) <= len(row.leases):
                del self._wanting[app]
            elif idle(row):
                del self._wanting[app]
                self._waiting.put(self.at_best(now, row, offer.state), row)
            else:
                ranked.append(self._entry(now, row, offer))
        return RankedQueue(self._waiting, ranked)


def _could_run(row: AppRow, offer: Offer) -> bool:
    """Return whether more of an app would run than now, if only enough GPUs were free."""
    return usable(row, offer.state.floor.size) > offer.count(row)
