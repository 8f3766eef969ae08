"""Why an app has what it has, why it waits and behind whom, and when it ran in the end.

`view` looks into the books at an instant, simulated or live. What comes after that instant is taken from a
run that has gone on: whoever tells it says so.

A policy may have a method `standing(now, state)` that names those who want GPUs in the order in which it
would serve them, each with a few words. Of others, the order is the one in which they were served later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from heapq import heapify, heappop, heappush
from math import inf
from typing import NamedTuple, Protocol, runtime_checkable

from astrarium.cluster.demand import wanted
from astrarium.cluster.fairness import time_left, work_left
from astrarium.cluster.record import ClusterRecord, Decision
from astrarium.cluster.state import AppRow, ClusterState, Outcome
from astrarium.core.units import FOREVER, Time

# When somebody who waits can expect GPUs, from what is known now: who holds what until when, how long
# owners say that jobs take, and who is before it in line. It knows nobody who comes later, and no job that
# ends sooner than its owner says.


@runtime_checkable
class Expects(Protocol):
    def expects(self, now: Time, state: ClusterState) -> dict[int, Time]: ...


@runtime_checkable
class TakesTurns(Protocol):
    @property
    def turns(self) -> Time: ...


def expected(now: Time, state: ClusterState, allocator: object, line: Sequence[int]) -> dict[int, Time]:
    """Of those in *line*; who cannot expect any has no entry."""
    if isinstance(allocator, Expects):
        return allocator.expects(now, state)
    turn = allocator.turns if isinstance(allocator, TakesTurns) else FOREVER
    frees = [(float(now), len(state.free))]
    for row in state.apps.values():
        frees += _given_back(now, row, turn, state)
    heapify(frees)
    found: dict[int, Time] = {}
    for app in line:
        row = state.apps[app]
        at = _served(frees, _gang(row))
        if at is not None:
            found[app] = round(at)
            heappush(frees, (at + min(turn, _span(now, row, state)), _gang(row)))
    return found


def _given_back(now: Time, row: AppRow, turn: Time, state: ClusterState) -> list[tuple[float, int]]:
    """Its GPUs, lease by lease."""
    if not row.leases:
        return []
    ends = now + min(time_left(now, row, tuple(row.leases), state), float(turn))
    return [(min(ends, float(until)), 1) for until in row.leases.values()]


def _gang(row: AppRow) -> int:
    """The fewest GPUs with which more of it would run."""
    return min((job.job.least for job in row.unfinished() if not job.gpus), default=1)


def _span(now: Time, row: AppRow, state: ClusterState) -> float:
    return work_left(now, row, state) / max(1, sum(job.job.most for job in row.unfinished()))


def _served(frees: list[tuple[float, int]], count: int) -> float | None:
    """When so many are free; they are taken. None: there are never so many."""
    taken, at = list[tuple[float, int]](), 0.0
    while count > 0 and frees:
        at, there = heappop(frees)
        taken.append((at, there))
        count -= there
    if count > 0 or at == inf:
        for each in taken:
            heappush(frees, each)
        return None
    if count < 0:
        heappush(frees, (at, -count))
    return at


@runtime_checkable
class Tells(Protocol):
    def standing(self, now: Time, state: ClusterState) -> Sequence[tuple[int, str]]: ...


class Seat(NamedTuple):
    """*needs*: the fewest GPUs with which more of it would run; 0: it could use none. *service*: GPU time."""

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


class View(NamedTuple):
    """*standing*: those who want GPUs, as the policy has them; none where it does not say. *expected*: when
    they can expect some, from what is known at that instant."""

    at: Time
    gpus: int
    free: int
    seats: dict[int, Seat]
    standing: tuple[tuple[int, str], ...] | None
    expected: Mapping[int, Time]


def view(now: Time, state: ClusterState, allocator: object) -> View:
    """A copy of the policy is asked: what it remembers by answering changes nothing."""
    seats = {app: _seat(now, row, state) for app, row in state.apps.items()}
    asked = deepcopy(allocator)
    told = tuple(asked.standing(now, state)) if isinstance(asked, Tells) else None
    line = [app for app, _ in told or ()]
    return View(now, state.floor.size, len(state.free), seats, told, expected(now, state, asked, line))


def _seat(now: Time, row: AppRow, state: ClusterState) -> Seat:
    jobs = row.unfinished()
    idle = [job.job.least for job in jobs if not job.gpus]
    wants = wanted(row)
    return Seat(
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
    found, since = list[tuple[Time, Time]](), row.arrived
    for start, end in spans:
        if start > since:
            found.append((since, start))
        since = max(since, end)
    end = row.ended if row.ended >= 0 else record.end
    if end > since:
        found.append((since, end))
    return [Wait(start, end, _given(record, start, end)) for start, end in found]


def _given(record: ClusterRecord, start: Time, end: Time) -> dict[int, int]:
    """Most first: GPUs that changed hands, not those whose leases were renewed."""
    counts: dict[int, int] = {}
    for each in record.held:
        if start <= each.start < end:
            counts[each.app] = counts.get(each.app, 0) + 1
    return dict(sorted(counts.items(), key=lambda one: -one[1]))


def story(record: ClusterRecord, app: int) -> list[Decision]:
    return [each for each in record.decisions if each.app == app]


def served_next(record: ClusterRecord, at: Time) -> dict[int, Decision]:
    """The first grant of GPUs that an app did not hold, after an instant."""
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


class Place(NamedTuple):
    """In line at an instant. *served*: when it was given more."""

    seat: Seat
    told: str
    served: Decision | None


def line(seen: View, record: ClusterRecord) -> list[Place]:
    """Those who wanted GPUs, first in line first."""
    later = served_next(record, seen.at)
    if seen.standing is not None:
        told = [(app, words) for app, words in seen.standing if app in seen.seats]
        return [Place(seen.seats[app], words, later.get(app)) for app, words in told]
    wanting = [seat for seat in seen.seats.values() if seat.wants]
    wanting.sort(key=lambda seat: later[seat.app].at if seat.app in later else FOREVER)
    return [Place(seat, "", later.get(seat.app)) for seat in wanting]


def last_reasons(record: ClusterRecord, app: int, at: Time) -> list[Decision]:
    """The decisions by which it came to hold what it held at an instant."""
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
