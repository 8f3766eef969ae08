"""Our own cluster policy is as fair as it can be made, and no slower than the short first.

At every decision it asks how small a bound on rho all apps can be held to, which gives each a deadline. An
app that has no time to lose until then comes first; one that has, lets the short go first, so that completion
times are small on the mean; and once no more apps come, the long and narrow begin in time for the end not to
be theirs alone (`queue`). So fairness takes from efficiency only what it needs, when it needs it.

- Memory: a deadline counts from an app's arrival; what was promised stays promised while it can be kept.
- Leases are for `lease`, and are renewed while nobody who waits comes first. Within `least_run` no GPU is
  taken back. After that, whoever comes first takes it from those who lose least by it: startups, and work
  since their last checkpoints (`allotments`).
- Places: those to whom a bad one costs most choose first; GPUs that lie apart are left to others who wait,
  where they would bring an app little; and whoever lies badly moves when that gains more than it costs, for
  which jobs on a single GPU make room (`exchanges`).

It goes by forecasts of owners, corrected by what was seen. None of it is the future.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from typing import Annotated

import msgspec

from astrarium.cluster.agents.participants import touched
from astrarium.cluster.contract import Allocations, Event, Grant, LeaseExpired, Revoke
from astrarium.cluster.demand import usable, wanted
from astrarium.cluster.policies import cluster_policies
from astrarium.cluster.policies._lease_ends import lease_end, spared, stood_on
from astrarium.cluster.policies._round_clock import RoundClock
from astrarium.cluster.policies.astrarium import allotments as allotting
from astrarium.cluster.policies.astrarium import explanations
from astrarium.cluster.policies.astrarium.allotments import Allotment
from astrarium.cluster.policies.astrarium.exchanges import exchanges
from astrarium.cluster.policies.astrarium.explanations import starts
from astrarium.cluster.policies.astrarium.prospects import Prospects, RhoDefinition
from astrarium.cluster.policies.astrarium.queue import PriorityQueue, RankedApp, Reason
from astrarium.cluster.state import ClusterState
from astrarium.core.policy import SetTimer
from astrarium.core.quantities import FOREVER, SECOND, Duration, Time, check_above_zero

NAME = "promise"
LEASES = 6  # after so many, the queue is looked at in any case
GRID = 4  # leases end at so many instants in a lease: decisions come together


@cluster_policies.register("astrarium")
class Astrarium:
    class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        lease: Annotated[Duration, msgspec.Meta(description="how long GPUs are leased")] = Duration(
            600 * SECOND
        )
        least_run: Annotated[
            Duration, msgspec.Meta(description="how long nobody can take a GPU from who was given it")
        ] = Duration(120 * SECOND)
        definition: Annotated[
            RhoDefinition, msgspec.Meta(description="of rho; both: the one by which an app fares worse")
        ] = "both"
        bound: Annotated[float, msgspec.Meta(gt=0, description="a rho that is good for everybody")] = 1.0
        more: Annotated[
            float, msgspec.Meta(ge=0, description="part by which the smallest possible bound is exceeded")
        ] = 0.0
        tail: Annotated[
            float, msgspec.Meta(ge=0, description="part by which the end of all work may come later")
        ] = 0.05
        round: Annotated[
            Duration, msgspec.Meta(description="decide only so often; 0: whenever something happens")
        ] = Duration(0)

        def __post_init__(self) -> None:
            check_above_zero("lease", self.lease)

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = mine = parameters
        self._prospects = Prospects(mine.definition)
        self._queue = PriorityQueue(mine.bound, mine.more, mine.tail, mine.round or mine.lease)
        self._rounds = RoundClock(mine.round) if mine.round else None
        self._since: dict[int, tuple[int, Time]] = {}  # who has a GPU, from when
        self._wakes: Time = FOREVER  # when a promise ends that somebody waits for
        self._review: Time = 0  # until then nothing changes by time alone

    def decide(self, now: Time, events: Sequence[Event], state: ClusterState) -> Allocations:
        if self._rounds is not None and not self._rounds.begins(now, state):
            self._review = now
            yield self._rounds.next(now)
            return
        if now < self._review and all(
            isinstance(event, LeaseExpired) and stood_on(event, state) for event in events
        ):
            for event in events:
                assert isinstance(event, LeaseExpired)
                yield Grant(event.app, event.gpus, self._until(now), explanations.GOES_ON)
            return
        expired = {event.app for event in events if type(event) is LeaseExpired}
        yield from spared(sorted(touched(events, state) - expired), state)
        if state.apps:
            yield from self._decided(now, state)
        self._since = {gpu: self._from(now, gpu, app) for gpu, app in state.holder.items()}
        if self._rounds is None and state.apps and self._wakes < FOREVER:
            yield SetTimer(self._wakes, NAME)
        if self._rounds is not None and state.apps and self._review < FOREVER:
            yield self._rounds.next(now)

    def standing(self, now: Time, state: ClusterState) -> list[tuple[int, str]]:
        """Return who wants GPUs, in the order in which they would get them."""
        queue = copy(self._queue)  # to be asked is no decision
        reasons = list[tuple[int, str]]()
        first = dict[int, str]()
        for one in self._ranked(now, queue, state):
            if wanted(one.prospect.row):
                before = first.setdefault(one.prospect.same, one.prospect.row.app.name)
                reasons.append((one.app, explanations.standing(one, queue.bound, now, before)))
        return reasons

    def expects(self, now: Time, state: ClusterState) -> dict[int, Time]:
        """Return when those who want GPUs can expect some, if nobody else comes and owners are right."""
        ranked = self._ranked(now, copy(self._queue), state)
        return starts(now, ranked, state, self._parameters.round or self._parameters.lease)

    def _ranked(self, now: Time, queue: PriorityQueue, state: ClusterState) -> list[RankedApp]:
        prospects = self._prospects.of(now, state)
        return queue.order(now, prospects, max(1, state.floor.size)) if prospects else []

    def _decided(self, now: Time, state: ClusterState) -> Iterator[Grant | Revoke]:
        ranked = self._ranked(now, self._queue, state)
        oldest = now - self._parameters.least_run
        allotments, places = allotting.allotted(now, ranked, state, self._since, oldest)
        yield from self._taken(ranked, allotments)
        yield from self._given(now, ranked, allotments, places, state)
        yield from spared((one.app for one in ranked if one.prospect.row.leases), state)
        self._wakes = self._promise_ends(now, ranked, state)
        self._review = self._next_review(now, ranked, state)

    def _promise_ends(self, now: Time, ranked: Sequence[RankedApp], state: ClusterState) -> Time:
        """Return when the first GPU can be taken from somebody who is behind a pressed app that has none."""
        size = state.floor.size
        behind = False
        earliest = FOREVER
        for one in ranked:
            row = one.prospect.row
            for gpu in row.leases if behind else ():
                ends = self._from(now, gpu, one.app)[1] + self._parameters.least_run
                earliest = min(earliest, ends if ends > now else FOREVER)
            pressed = one.reason is Reason.FAIRNESS and not row.leases
            behind = behind or (pressed and bool(usable(row, size)))
        return earliest

    def _next_review(self, now: Time, ranked: Sequence[RankedApp], state: ClusterState) -> Time:
        """Return until when nothing changes by time alone. Who runs moves forward in line, so that nothing
        changes until somebody who waits is pressed, or a promise ends that somebody waits for; but not for
        ever, as forecasts do."""
        size = state.floor.size
        waiting = [one for one in ranked if len(one.prospect.row.leases) < usable(one.prospect.row, size)]
        if not waiting:
            return FOREVER
        if self._wakes < FOREVER:
            return now + 1
        pressed = min(self._queue.pressed_in(now, one) for one in waiting)
        return now + max(1, min(round(pressed), LEASES * self._parameters.lease))

    def _taken(self, ranked: Sequence[RankedApp], allotments: Mapping[int, Allotment]) -> Iterator[Revoke]:
        gains = next(
            (one for one in ranked if allotments[one.app].count > len(allotments[one.app].has)), None
        )
        for one in ranked:
            mine = allotments[one.app]
            gone = [gpu for gpu in mine.has if gpu in mine.row.leases and gpu not in mine.kept]
            if gone:
                yield Revoke(one.app, tuple(gone), explanations.why_taken(one, gains))

    def _given(
        self,
        now: Time,
        ranked: Sequence[RankedApp],
        allotments: Mapping[int, Allotment],
        places: Mapping[int, list[int]],
        state: ClusterState,
    ) -> Iterator[Grant | Revoke]:
        until = self._until(now)
        for one in ranked:
            mine = allotments[one.app]
            new = places.get(one.app, [])
            again = [gpu for gpu in mine.kept if gpu not in mine.row.leases]
            if new:
                why = explanations.why_given(one, self._queue.bound)
                yield Grant(one.app, tuple(sorted([*again, *new])), until, why)
            elif again:
                yield Grant(one.app, tuple(sorted(again)), until, explanations.GOES_ON)
        yield from exchanges(now, until, allotments, state)

    def _from(self, now: Time, gpu: int, app: int) -> tuple[int, Time]:
        before = self._since.get(gpu)
        return before if before is not None and before[0] == app else (app, now)

    def _until(self, now: Time) -> Time:
        """Return the end of a lease: the next round, or the instant of the grid nearest to it."""
        if self._rounds is not None:
            return now + self._parameters.round
        return max(now + 1, lease_end(now, self._parameters.lease, GRID))
