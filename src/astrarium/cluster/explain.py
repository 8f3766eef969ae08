"""Explanations tell why an app has what it has, why it waits and behind whom, and when it ran in the end.

`view` looks into the books at an instant, simulated or live. What comes after that instant is taken from a
run that has gone on: whoever tells it says so.

A policy may have a method `standing(now, state)` that names those who want GPUs in the order in which it
would serve them, each with a few words. Of others, the order is the one in which they were served later. It
may also say itself when apps can expect GPUs, with a method `expects(now, state)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from heapq import heapify, heappush
from typing import Any, NamedTuple

from astrarium.cluster.demand import most_usable, soonest, wanted
from astrarium.cluster.fairness import time_left, work_left
from astrarium.cluster.record import ClusterRecord, Decision
from astrarium.cluster.state import AppRow, ClusterState, Outcome
from astrarium.core.units import FOREVER, Time


def expected(now: Time, state: ClusterState, allocator: Any, line: Sequence[int]) -> dict[int, Time]:
    """Return when each app in *line* can expect GPUs; an app that cannot expect any has no entry. It goes by
    what is known now: who holds what until when, how long owners say that jobs take, and who comes before it.
    It knows no app that comes later, and no job that ends sooner than its owner says."""
    if hasattr(allocator, "expects"):
        return dict(allocator.expects(now, state))
    frees = [(float(now), len(state.free))]
    for row in state.apps.values():
        frees += _given_back(now, row, state)
    heapify(frees)
    found: dict[int, Time] = {}
    for app in line:
        row = state.apps[app]
        at = soonest(frees, _gang(row))
        if at is not None:
            found[app] = round(at)
            takes = work_left(now, row, state) / max(1, most_usable(row))
            heappush(frees, (at + takes, _gang(row)))
    return found


def _given_back(now: Time, row: AppRow, state: ClusterState) -> list[tuple[float, int]]:
    """Return when an app gives its GPUs back, lease by lease."""
    if not row.leases:
        return []
    ends = now + time_left(now, row, tuple(row.leases), state)
    return [(min(ends, float(until)), 1) for until in row.leases.values()]


def _gang(row: AppRow) -> int:
    """Return the fewest GPUs with which more of an app would run."""
    return min((job.job.least for job in row.unfinished() if not job.gpus), default=1)


class AppView(NamedTuple):
    """What an app holds and wants at an instant. *needs*: the fewest GPUs with which more of it would run; 0:
    it could use none. *service*: GPU time."""

    app: int
    name: str
    holds: tuple[int, ...]
    until: Time  # when the first of its leases ends
    wants: int
    needs: int
    service: Time
    phase: int
    running: int
    jobs: int


class ClusterView(NamedTuple):
    """The cluster at an instant, with each app that is there. *standing*: those who want GPUs, as the policy
    has them; none where it does not say. *expected*: when they can expect some, from what is known at that
    instant."""

    at: Time
    gpus: int
    free: int
    apps: dict[int, AppView]
    standing: tuple[tuple[int, str], ...] | None
    expected: Mapping[int, Time]


def view(now: Time, state: ClusterState, allocator: Any) -> ClusterView:
    """Return the cluster as it is now; a copy of the policy is asked, so that nothing changes."""
    apps = {app: _app_view(now, row, state) for app, row in state.apps.items()}
    asked = deepcopy(allocator)
    told = tuple(asked.standing(now, state)) if hasattr(asked, "standing") else None
    line = [app for app, _ in told or ()]
    return ClusterView(now, state.floor.size, len(state.free), apps, told, expected(now, state, asked, line))


def _app_view(now: Time, row: AppRow, state: ClusterState) -> AppView:
    jobs = row.unfinished()
    idle = [job.job.least for job in jobs if not job.gpus]
    wants = wanted(row)
    return AppView(
        app=row.app.id,
        name=row.app.name,
        holds=tuple(sorted(row.leases)),
        until=min(row.leases.values(), default=-1),
        wants=wants,
        needs=min(idle, default=1) if wants else 0,
        service=state.service(now, row),
        phase=row.phase,
        running=len(jobs) - len(idle),
        jobs=len(jobs),
    )


class Wait(NamedTuple):
    """A time in which an app that was there held nothing, and who was given how many GPUs meanwhile."""

    start: Time
    end: Time
    others: dict[int, int]


def waits(record: ClusterRecord, row: AppRow) -> list[Wait]:
    spans = sorted((each.start, each.end) for each in record.held if each.app == row.app.id)
    found = list[tuple[Time, Time]]()
    since = row.arrived
    for start, end in spans:
        if start > since:
            found.append((since, start))
        since = max(since, end)
    end = row.ended if row.ended >= 0 else record.end
    if end > since:
        found.append((since, end))
    return [Wait(start, end, _given(record, start, end)) for start, end in found]


def _given(record: ClusterRecord, start: Time, end: Time) -> dict[int, int]:
    """Return the GPUs that each app was given in a time, most first; renewed leases do not count."""
    counts: dict[int, int] = {}
    for each in record.held:
        if start <= each.start < end:
            counts[each.app] = counts.get(each.app, 0) + 1
    return dict(sorted(counts.items(), key=lambda one: -one[1]))


def story(record: ClusterRecord, app: int) -> list[Decision]:
    return [each for each in record.decisions if each.app == app]


def served_next(record: ClusterRecord, at: Time) -> dict[int, Decision]:
    """Return the first grant of GPUs that each app did not hold, after an instant."""
    held: dict[int, set[int]] = {}
    for each in record.held:
        if each.start <= at < each.end:
            held.setdefault(each.app, set()).add(each.gpu)
    found: dict[int, Decision] = {}
    for decision in record.decisions:
        later = decision.at > at and decision.until >= 0 and decision.app not in found
        if later and not set(decision.gpus) <= held.get(decision.app, set()):
            found[decision.app] = decision
    return found


class LinePosition(NamedTuple):
    """An app in line at an instant. *served*: when it was given more."""

    app_view: AppView
    told: str
    served: Decision | None


def line(seen: ClusterView, record: ClusterRecord) -> list[LinePosition]:
    """Return those who wanted GPUs, first in line first."""
    later = served_next(record, seen.at)
    if seen.standing is not None:
        told = [(app, words) for app, words in seen.standing if app in seen.apps]
        return [LinePosition(seen.apps[app], words, later.get(app)) for app, words in told]
    wanting = [app_view for app_view in seen.apps.values() if app_view.wants]
    wanting.sort(key=lambda app_view: later[app_view.app].at if app_view.app in later else FOREVER)
    return [LinePosition(app_view, "", later.get(app_view.app)) for app_view in wanting]


def last_reasons(record: ClusterRecord, app: int, at: Time) -> list[Decision]:
    """Return the decisions by which an app came to hold what it held at an instant."""
    gpus = {each.gpu for each in record.held if each.app == app and each.start <= at < each.end}
    found: list[Decision] = []
    for decision in reversed(story(record, app)):
        mine = gpus & set(decision.gpus) if decision.at <= at < decision.until else set()
        if mine:
            found.append(decision._replace(gpus=tuple(sorted(mine))))
            gpus -= mine
    return found[::-1]


def has_ended(row: AppRow, at: Time) -> bool:
    return row.outcome is not Outcome.OPEN and 0 <= row.ended <= at
