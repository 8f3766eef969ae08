"""Tiresias gives GPUs to the app that has had the least GPU time.

`tiresias` is the policy as Themis compares with it (section 6.1); `tiresias-2d` is that of the Tiresias paper
(NSDI 2019), with queues by two-dimensional attained service: GPUs times time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from astrarium.cluster.contract import Allocations, Event, Grant, Revoke
from astrarium.cluster.demand import idle_first, most_usable, needed, wanted
from astrarium.cluster.policies import cluster_policies
from astrarium.cluster.policies._leased import Leased
from astrarium.cluster.policies._offer import Offer
from astrarium.cluster.state import AppRow, ClusterState
from astrarium.core.errors import InputError
from astrarium.core.policy import SetTimer
from astrarium.core.quantities import FOREVER, SECOND, Time

NAME = "queue"


@dataclass
class QueuePosition:
    """The queue of an app, its place there, and its service when it began in the first queue."""

    queue: int
    order: int
    base: Time = 0
    waits: Time = -1  # since when; -1: it runs


@cluster_policies.register("tiresias-2d")
class Tiresias2d:
    """Tiresias as in its paper serves apps by queues of attained service, GPUs times time."""

    class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        limits: Annotated[
            tuple[float, ...], msgspec.Meta(description="GPU seconds with which an app leaves each queue")
        ] = (3250.0, 7200.0, 18000.0)
        queues: Annotated[int, msgspec.Meta(ge=1, description="the last of them has no limit")] = 3
        promote: Annotated[
            float, msgspec.Meta(ge=0, description="wait over run that leads back to the first queue; 0: none")
        ] = 0.0

        def __post_init__(self) -> None:
            if list(self.limits) != sorted(self.limits) or any(limit <= 0 for limit in self.limits):
                raise InputError("limits", self.limits, "GPU seconds that rise")
            if self.queues > len(self.limits) + 1:
                raise InputError(
                    "queues", self.queues, f"at most {len(self.limits) + 1}: one more than limits"
                )

    def __init__(self, parameters: Parameters) -> None:
        self._limits = [round(limit * SECOND) for limit in parameters.limits[: parameters.queues - 1]]
        self._promote = parameters.promote
        self._places: dict[int, QueuePosition] = {}
        self._entered = 0  # counts moves: who moves at the same instant keeps the order

    def decide(self, now: Time, events: Sequence[Event], state: ClusterState) -> Allocations:
        self._move(now, state)
        chosen = self._chosen(state)
        for row in state.apps.values():
            excess = len(row.leases) - chosen.get(row.app.id, 0)
            if excess > 0:
                why = "others come before it, or it has no use for them any more"
                yield Revoke(row.app.id, idle_first(row)[:excess], why)
        for app, count in chosen.items():
            row = state.apps[app]
            if count > len(row.leases):
                gpus = Offer(state).best(row, count - len(row.leases))
                yield Grant(app, tuple(gpus), FOREVER, f"it is next in queue {self._places[app].queue + 1}")
        self._wait(now, chosen, state)
        at = self._next_change(now, state)
        if at < FOREVER:
            yield SetTimer(at, NAME)

    def standing(self, now: Time, state: ClusterState) -> list[tuple[int, str]]:
        """Return who wants GPUs, in the order of the queues."""
        wanting = [app for app, row in state.apps.items() if wanted(row) and app in self._places]
        wanting.sort(key=lambda app: (self._places[app].queue, self._places[app].order))
        return [(app, self._in_words(now, app, state)) for app in wanting]

    def _in_words(self, now: Time, app: int, state: ClusterState) -> str:
        had = (state.service(now, state.apps[app]) - self._places[app].base) / SECOND
        return (
            f"in queue {self._places[app].queue + 1} of {len(self._limits) + 1}, with {had:.0f} GPU seconds"
        )

    def _move(self, now: Time, state: ClusterState) -> None:
        """Move apps to the queues where they belong now."""
        places = self._places
        self._places = {}
        for app, row in state.apps.items():
            place = places.get(app) or self._enter(0)
            if now >= self._starves_at(place, row, state):
                place = self._enter(0, state.service(now, row))
            queue = sum(state.service(now, row) - place.base >= limit for limit in self._limits)
            if queue != place.queue:
                place = self._enter(queue, place.base, place.waits)
            self._places[app] = place

    def _enter(self, queue: int, base: Time = 0, waits: Time = -1) -> QueuePosition:
        self._entered += 1
        return QueuePosition(queue, self._entered, base, waits)

    def _starves_at(self, place: QueuePosition, row: AppRow, state: ClusterState) -> Time:
        """Return when an app has been stopped for too long; it must have run before."""
        if not self._promote or place.queue == 0 or place.waits < 0:
            return FOREVER
        ran = row.service / max(1, most_usable(row))
        return place.waits + max(1, round(self._promote * ran))

    def _chosen(self, state: ClusterState) -> dict[int, int]:
        """Return which apps run, on how many GPUs: an app that does not fit is passed over."""
        left = state.floor.size
        chosen = dict[int, int]()
        for app in sorted(self._places, key=lambda app: (self._places[app].queue, self._places[app].order)):
            if not left:
                break
            count = needed(state.apps[app], left)
            if count:
                chosen[app] = count
                left -= count
        return chosen

    def _wait(self, now: Time, chosen: dict[int, int], state: ClusterState) -> None:
        for app, place in self._places.items():
            if app in chosen:
                place.waits = -1
            elif place.waits < 0:
                place.waits = now

    def _next_change(self, now: Time, state: ClusterState) -> Time:
        """Return when the first app reaches the limit of its queue, or has waited for too long."""
        return min((self._changes_at(now, app, state) for app in self._places), default=FOREVER)

    def _changes_at(self, now: Time, app: int, state: ClusterState) -> Time:
        row = state.apps[app]
        place = self._places[app]
        if not row.leases:
            return self._starves_at(place, row, state)
        if place.queue == len(self._limits):
            return FOREVER
        missing = self._limits[place.queue] - (state.service(now, row) - place.base)
        return now + max(1, -(-missing // len(row.leases)))


@cluster_policies.register("tiresias")
class Tiresias(Leased):
    """Tiresias as Themis compares with it (6.1) gives GPUs to the app that has had the least GPU time."""

    why = "it has had the least GPU time"

    def rank_in_words(self, rank: float) -> str:
        return f"it has had {rank / SECOND / 3600:.2f} GPU-hours"

    def rank(self, now: Time, row: AppRow, offer: Offer) -> float:
        return offer.state.service(now, row)
