"""The rivals of Themis (its section 6.1) lease free GPUs to the apps that rank best.

Whenever GPUs are free, apps that want some are ranked, and the best get what they can use. Of equals who has
fewest goes first, then who has had so few for longest: by arrival, equals would be served one by one. A gang
runs whole or not at all. GPUs are kept for the first in line until its gang is whole, which takes no longer
than a lease; a policy that `skips` lets those pass who fit, and large gangs may wait while small ones come.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Annotated, Literal

import msgspec

from astrarium.cluster import contract
from astrarium.cluster.arrange import closest
from astrarium.cluster.demand import idle_first, most_usable, needed, spare, usable
from astrarium.cluster.state import AppRow, ClusterState
from astrarium.core.quantities import Duration, check_above_zero
from astrarium.core.units import FOREVER, SECOND, Time

Entry = tuple[float, int, Time, int]  # rank, GPUs, since when it has had so many, app


def idle(row: AppRow) -> bool:
    """Return whether an app has no GPU, and no job of it stands on one whose lease has just ended."""
    return not row.leases and not any(job.gpus for job in row.jobs.values())


def kind(row: AppRow) -> Hashable:
    """Return a key that apps share whose jobs would make the same of any GPUs."""
    if len(row.jobs) > 1 or len(row.app.phases) > 1:
        return row.app.id
    (only,) = row.jobs.values()
    return only.job.least, only.job.most, only.job.model


class WaitingLine:
    """Apps that hold nothing and wait, in order, grouped by kind. While an app waits nothing changes for it,
    so that its place is found once; and of apps that are alike, the first is asked first, whatever is
    free."""

    def __init__(self) -> None:
        self._alike: dict[Hashable, list[Entry]] = {}  # each in order
        self._places: dict[int, tuple[Hashable, Entry]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, app: int) -> bool:
        return app in self._places

    def put(self, rank: float, row: AppRow) -> None:
        like = kind(row)
        entry = (rank, 0, row.counted, row.app.id)
        insort(self._alike.setdefault(like, []), entry)
        self._places[row.app.id] = like, entry

    def drop(self, app: int) -> None:
        if app in self._places:
            like, entry = self._places.pop(app)
            alike = self._alike[like]
            del alike[bisect_left(alike, entry)]
            if not alike:
                del self._alike[like]

    def heads(self) -> Iterator[Entry]:
        """Return the first app of each kind."""
        return (alike[0] for alike in self._alike.values())

    def after(self, app: int) -> Entry | None:
        """Return the next app of the same kind."""
        like, entry = self._places[app]
        alike = self._alike[like]
        place = bisect_left(alike, entry) + 1
        return alike[place] if place < len(alike) else None


class RankedQueue:
    """The queue of apps to ask next: those ranked for the occasion, and the first in line of each kind."""

    def __init__(self, line: WaitingLine, ranked: Iterable[Entry]) -> None:
        self._line = line
        self._heap = [*ranked, *line.heads()]
        self._followed: set[int] = set()
        heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def pop(self) -> Entry:
        return heappop(self._heap)

    def push(self, entry: Entry) -> None:
        heappush(self._heap, entry)

    def follow(self, app: int) -> None:
        """Let the next app of the same kind in, once."""
        if app in self._line and app not in self._followed:
            self._followed.add(app)
            following = self._line.after(app)
            if following is not None:
                heappush(self._heap, following)


SPARE = "it has no use for them any more"
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


class Offer:
    """The GPUs that are free, and who has won some of them in this step. On *warm* ones jobs still stand
    whose leases have just ended: others should take them last."""

    def __init__(self, state: ClusterState, warm: Iterable[int] = ()) -> None:
        self.state = state
        self.won = dict[int, list[int]]()
        self.warm = warm
        self.taken: set[int] = set()

    def __len__(self) -> int:
        return len(self.state.free) - len(self.taken)

    def held(self, row: AppRow) -> list[int]:
        """Return what the app has, with what it has won."""
        return [*row.leases, *self.won.get(row.app.id, ())]

    def count(self, row: AppRow) -> int:
        return len(row.leases) + len(self.won.get(row.app.id, ()))

    def wants(self, row: AppRow) -> int:
        """Return how many of the GPUs that are left the app could use."""
        has = self.count(row)
        return usable(row, has + len(self)) - has

    def best(self, row: AppRow, count: int) -> list[int]:
        """Return GPUs where jobs of the app have just been, as far as these are free, and then close by."""
        free = self.state.free
        taken = self.taken
        stood = [gpu for job in row.jobs.values() for gpu in job.gpus if gpu in free and gpu not in taken]
        if len(stood) >= count:
            return stood[:count]
        left = free.difference(taken, stood)
        missing = count - len(stood)
        cold = left.difference(self.warm)
        near = [*self.held(row), *stood]
        return [*stood, *closest(cold if len(cold) >= missing else left, missing, self.state.floor, near)]

    def take(self, row: AppRow, gpus: Iterable[int]) -> None:
        won = self.won.setdefault(row.app.id, [])
        won += gpus
        self.taken.update(gpus)


class Leased:
    """A policy that leases free GPUs to the apps of the smallest *rank*. *fixed*: a rank does not depend on
    what others have taken meanwhile. *in_order*: of two apps that hold nothing and whose jobs are alike, the
    one with the smaller `at_best` has the smaller rank too, whatever is offered."""

    Parameters: type[msgspec.Struct] = LeaseParameters
    fixed = True
    in_order = True
    why = ""

    def __init__(self, parameters: LeaseParameters) -> None:
        self._lease = parameters.lease
        self._skips = parameters.gangs == "skip"
        self._wanting: dict[int, None] = {}  # apps that may want GPUs, besides those in line
        self._line = WaitingLine()

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
        return [(app, self.rank_in_words(rank)) for rank, _, _, app in ranked]

    def _entry(self, now: Time, row: AppRow, offer: Offer) -> Entry:
        """Return the place of an app in the queue: of equal ranks, who has fewest GPUs for longest."""
        return self.rank(now, row, offer), offer.count(row), row.counted, row.app.id

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
        if not self._wanting and not self._line and self._can_renew(events, state):
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
        self._line.drop(app)
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
        queue = self._queue(now, offer)
        while queue and offer:
            entry = queue.pop()
            app = entry[-1]
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

    def _queue(self, now: Time, offer: Offer) -> RankedQueue:
        apps = offer.state.apps
        ranked = []
        for app in list(self._wanting):
            row = apps.get(app)
            if row is None or most_usable(row) <= len(row.leases):
                del self._wanting[app]
            elif idle(row):
                del self._wanting[app]
                self._line.put(self.at_best(now, row, offer.state), row)
            else:
                ranked.append(self._entry(now, row, offer))
        return RankedQueue(self._line, ranked)


def lease_end(now: Time, lease: Time, grid: int) -> Time:
    """Return the instant of the grid that is nearest to a whole lease from now."""
    if not grid:
        return now + lease
    step = max(1, lease // grid)
    return -(-(now + lease - step // 2) // step) * step


def spared(apps: Iterable[int], state: ClusterState) -> Iterator[contract.Revoke]:
    """Take back what apps have a lease for and no use any more."""
    for app in apps:
        gpus = spare(state.apps[app]) if app in state.apps else ()
        if gpus:
            yield contract.Revoke(app, gpus, SPARE)


def stood_on(event: contract.LeaseExpired, state: ClusterState) -> bool:
    """Return whether jobs of the app still stand on all GPUs of a lease that has just ended."""
    row = state.apps.get(event.app)
    if row is None or not state.free.issuperset(event.gpus):
        return False
    return {gpu for job in row.jobs.values() for gpu in job.gpus}.issuperset(event.gpus)


def _could_run(row: AppRow, offer: Offer) -> bool:
    """Return whether more of an app would run than now, if only enough GPUs were free."""
    return usable(row, offer.state.floor.size) > offer.count(row)
