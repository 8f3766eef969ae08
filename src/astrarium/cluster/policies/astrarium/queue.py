"""The queue of our own policy says who comes before whom, and for which reason.

- FAIRNESS: who would fare worse than the bound if it did not run from now on, the most pressed first.
  The bound is the smallest that all can be held to, and a little more. It is remembered: what was
  promised is kept as long as it can be, whoever comes. Who is the reason for the bound, because it
  would reach it even if it ran from now on, does not wait either: so nobody starves.
- TAIL: who is so long and narrow that all would wait for it in the end, once no more apps come: the longest
  first.
- TIGHT: who has to do its part so that all can meet the bound together, though it could wait if it were
  alone: until some instant hardly any GPU time is left over, and it has work to do by then. Who can wait
  least goes first, which is optimal for work that can be divided; who runs goes on until others are more
  pressed by a margin and by what would be lost, and to its end if that is near.
- SHORT: all others, those with the least GPU time left first, which makes the mean completion time small.
  Who runs is put forward by what would be lost if it were stopped: it goes on unless stopping it gains more.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from math import inf
from typing import NamedTuple

import numpy as np

from astrarium.cluster.policies.astrarium.deadlines import smallest_bound, tight_until, work_and_spans
from astrarium.cluster.policies.astrarium.prospects import AppProspect
from astrarium.core.quantities import Time

QUIET = 4  # mean gaps between arrivals without one: no more apps come
HAIR = 1e-3
NEAR = 0.02  # of the time until all is done: who is as long as that is pressed


class Reason(IntEnum):
    FAIRNESS = 0
    TAIL = 1
    TIGHT = 2
    SHORT = 3


class RankedApp(NamedTuple):
    """An app in the queue, with the reason for its rank. *slack*: how long it could wait and still meet the
    bound."""

    prospect: AppProspect
    reason: Reason
    slack: float

    @property
    def app(self) -> int:
        return self.prospect.row.app.id


class PriorityQueue:
    """The queue puts apps in order, and keeps the bound on rho that all are held to. *bound* is never below
    the *least*; *more* than the smallest possible and *tail* are parts of it. *margin*: an app that has no
    more slack than this is pressed: there may be no decision in time otherwise."""

    def __init__(self, least: float, more: float, tail: float, margin: Time) -> None:
        self._least = least
        self._more = more
        self._tail = tail
        self._margin = margin
        self.bound = inf
        self._smallest = least
        self._tight = 0.0  # how long hardly any GPU time is left over
        self._done_by = 0.0  # when all work that there is should be done
        self._known: set[int] = set()
        self._came: list[Time] = []  # the first and the last arrival
        self._count = 0

    def order(self, now: Time, prospects: Sequence[AppProspect], gpus: int) -> list[RankedApp]:
        came = self._hear(prospects)
        self._promise(now, prospects, gpus)
        drain = _drain(prospects, gpus)
        if came:
            self._done_by = max(self._done_by, now + drain * (1 + self._tail))
        self._done_by = max(self._done_by, now + drain)
        ranked = [self._ranked(now, prospect, drain, gpus) for prospect in prospects]
        ranked.sort(key=lambda one: (one.reason, self._key(one), one.prospect.row.arrived, one.app))
        return _by_arrival(ranked)

    def _hear(self, prospects: Sequence[AppProspect]) -> bool:
        """Return whether an app has come."""
        new = [prospect.row.arrived for prospect in prospects if prospect.app not in self._known]
        if len(new) == len(prospects):
            self.bound = inf  # nobody is there any more to whom anything was promised
        self._known = {prospect.app for prospect in prospects}
        if new:
            came = [*self._came[:1], *new]
            self._came = [came[0], came[-1]]
            self._count += len(new)
        return bool(new)

    def _promise(self, now: Time, prospects: Sequence[AppProspect], gpus: int) -> None:
        self._smallest = smallest = smallest_bound(now, prospects, gpus)
        self.bound = max(smallest, min(self.bound, max(self._least, smallest * (1 + self._more))))
        deadlines = np.array([prospect.deadline(self.bound) - now for prospect in prospects])
        self._tight = tight_until(*work_and_spans(prospects), deadlines, gpus, self._margin)

    def _ranked(self, now: Time, prospect: AppProspect, drain: float, gpus: int) -> RankedApp:
        slack = prospect.deadline(self.bound) - now - prospect.span
        worst = prospect.best(now) > max(self._least, self._smallest * (1 - HAIR))
        if slack <= self._margin or worst:
            return RankedApp(prospect, Reason.FAIRNESS, min(0.0, slack) if worst else slack)
        near = NEAR * drain * (1 - prospect.rate / gpus)  # who is wide can catch up
        if self._quiet(now) and self._done_by - now - prospect.span < near:
            return RankedApp(prospect, Reason.TAIL, slack)
        return RankedApp(prospect, Reason.TIGHT if slack < self._tight else Reason.SHORT, slack)

    def _key(self, ranked: RankedApp) -> float:
        if ranked.reason is Reason.FAIRNESS:
            return ranked.slack
        if ranked.reason is Reason.TIGHT:
            return ranked.slack - self._ahead(ranked.prospect)
        return (
            -ranked.prospect.span
            if ranked.reason is Reason.TAIL
            else ranked.prospect.left - ranked.prospect.loss
        )

    def _ahead(self, prospect: AppProspect) -> float:
        """Return by how much others must be more pressed to take GPUs from an app; it ends if it soon can."""
        if not prospect.row.leases:
            return 0.0
        return (
            inf if prospect.span <= self._margin else self._margin + prospect.loss / len(prospect.row.leases)
        )

    def pressed_in(self, now: Time, ranked: RankedApp) -> float:
        """Return how long an app can wait at most until it comes before others."""
        fairness = ranked.slack - self._margin
        return min(fairness, self._done_by - now - ranked.prospect.span) if self._quiet(now) else fairness

    def _quiet(self, now: Time) -> bool:
        first, last = self._came
        return (now - last) * (self._count - 1) > QUIET * (last - first)


def _by_arrival(ranked: list[RankedApp]) -> list[RankedApp]:
    """Let apps that are the same begin by arrival: the first of them takes the first of their places, and so
    on. Otherwise the last of them would be pressed first, as it has the fewest beside it in the end. Those
    that have begun differ by what is left of them, and who is pressed keeps its place."""
    places: dict[int, list[int]] = {}
    for place, one in enumerate(ranked):
        if one.prospect.row.started < 0:
            places.setdefault(one.prospect.same, []).append(place)
    for own in (same for same in places.values() if len(same) > 1):
        first = sorted(
            (ranked[place].prospect for place in own),
            key=lambda prospect: (prospect.row.arrived, prospect.app),
        )
        for place, prospect in zip(own, first, strict=True):
            ranked[place] = ranked[place]._replace(prospect=prospect)
    return ranked


def _drain(prospects: Sequence[AppProspect], gpus: int) -> float:
    """Return how long all work takes at best: no faster than the longest app, nor than all GPUs."""
    return max(
        max(prospect.span for prospect in prospects), sum(prospect.left for prospect in prospects) / gpus
    )
