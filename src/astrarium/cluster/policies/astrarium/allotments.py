"""The queue becomes leases: how many GPUs each app gets, which it gives back, and which it is given.

A GPU stays with an app for as long as was promised (*protected*); beyond that it goes to whoever comes first
in line. While a pressed app waits for GPUs that are promised to others, nobody gets more than it has, so that
they come together. While others wait, an app leaves them GPUs that lie apart from its own and would bring it
little.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from astrarium.cluster.arrange import closest, cost_of_spread, planned
from astrarium.cluster.demand import just_expired, usable
from astrarium.cluster.machines import Spread
from astrarium.cluster.policies.astrarium.prospects import job_left, lost_by_stopping
from astrarium.cluster.policies.astrarium.queue import RankedApp, Reason
from astrarium.cluster.state import AppRow, ClusterState, JobRow
from astrarium.core.quantities import Time

WORTH = 2.0  # a move must gain so many times what it costs
LOOKS = 4  # at places, with what was left to others the time before
BRINGS = 0.8  # what a GPU that lies apart must bring, of what it is worth to others
BRINGS_PRESSED = 0.5  # and where an app is pressed


@dataclass
class Allotment:
    """The GPUs that an app *has* or had until now, those promised (*protected*), and how many it gets."""

    row: AppRow
    has: list[int]
    protected: list[int]
    count: int = 0
    keeps: list[int] | None = None

    @property
    def kept(self) -> list[int]:
        return self.has if self.keeps is None else self.keeps


def allotted(
    now: Time,
    ranked: Sequence[RankedApp],
    state: ClusterState,
    since: Mapping[int, tuple[int, Time]],
    oldest: Time,
) -> tuple[dict[int, Allotment], dict[int, list[int]]]:
    """Return what each app gets, and which GPUs are new to it. *since*, *oldest*: see `allotment`."""
    allotments = {one.app: allotment(one.prospect.row, state, since, oldest) for one in ranked}
    caps: dict[int, int] = {}
    for _ in range(LOOKS):
        set_counts(ranked, allotments, state.floor.size, caps)
        for mine in allotments.values():
            choose_kept(now, mine, state)
        places = new_places(now, ranked, allotments, state)
        left = _left_to_others(ranked, allotments, places, state)
        if not left:
            break
        caps.update(left)
    return allotments, places


def _left_to_others(
    ranked: Sequence[RankedApp],
    allotments: Mapping[int, Allotment],
    places: Mapping[int, list[int]],
    state: ClusterState,
) -> dict[int, int]:
    """Return how many GPUs apps take if they leave those to others that lie apart."""
    wanting = sum(one.prospect.width for one in ranked) - state.floor.size
    counts = dict[int, int]()
    for one in ranked if wanting > 0 else ():
        mine = allotments[one.app]
        gpus = [*mine.kept, *places.get(one.app, ())]
        if wanting > 0 and len(gpus) > 1 and state.floor.spread(gpus) >= Spread.RACK:
            enough = BRINGS_PRESSED if one.reason is Reason.FAIRNESS else BRINGS
            count = max(len(mine.protected), len(gpus) - _bring_little(mine.row, gpus, enough, state))
            if count < len(gpus):
                counts[one.app] = count
                wanting -= len(gpus) - count
    return counts


def _bring_little(row: AppRow, gpus: list[int], enough: float, state: ClusterState) -> int:
    """Return how many of an app's GPUs lie apart from others of an elastic job and bring less than that."""
    little = 0
    for number, on in planned(row, gpus, state.floor).items():
        job = row.jobs[number].job
        if job.least < job.most and len(on) > 1 and state.floor.spread(on) >= Spread.RACK:
            part = max(state.floor.by_machine(on).values(), key=len)
            less = len(on) - max(len(part), job.least)
            if state.pace(job, on) - state.pace(job, part) < enough * less:
                little += less
    return little


def allotment(
    row: AppRow, state: ClusterState, since: Mapping[int, tuple[int, Time]], oldest: Time
) -> Allotment:
    """Return what an app has and how much of it is promised, before it is known how many it gets. *since*: of
    each GPU, who has it from when. Those given after *oldest* are promised."""
    has = [*row.leases, *(gpu for gpu in just_expired(row) if gpu in state.free)]
    since_of_gpu = {gpu: since.get(gpu, (row.app.id, -1)) for gpu in has}
    return Allotment(
        row, has, [g for g, (app, at) in since_of_gpu.items() if app == row.app.id and at > oldest]
    )


def set_counts(
    ranked: Sequence[RankedApp], allotments: Mapping[int, Allotment], size: int, caps: Mapping[int, int]
) -> int | None:
    """Set how many GPUs each app gets, in order of the queue; return the app that all wait for, if any.
    *caps*: some leave the rest to others."""
    unpromised = size - sum(len(mine.protected) for mine in allotments.values())
    waits_for = None
    for one in ranked:
        mine = allotments[one.app]
        own = len(mine.protected)
        most = own + unpromised if waits_for is None else min(own + unpromised, len(mine.has))
        mine.count = max(own, usable(mine.row, min(most, caps.get(one.app, most))))
        unpromised -= mine.count - own
        pressed = one.reason in (Reason.FAIRNESS, Reason.TIGHT) and not mine.count
        if pressed and waits_for is None and usable(mine.row, size):
            waits_for = one.app
    return waits_for


def choose_kept(now: Time, mine: Allotment, state: ClusterState) -> None:
    """Choose what an app keeps: what is promised, then whole jobs, those first that would lose most."""
    mine.keeps = None
    if len(mine.has) <= mine.count:
        return
    if len(mine.row.jobs) == 1 and not mine.protected:
        mine.keeps = list(closest(mine.has, mine.count, state.floor))
        return
    chosen = dict.fromkeys(mine.protected)
    here = set(mine.has)
    jobs = [job for job in mine.row.jobs.values() if job.gpus and here.issuperset(job.gpus)]
    for job in sorted(jobs, key=lambda job: -_loss(now, job, chosen, state)):
        more = [gpu for gpu in job.gpus if gpu not in chosen]
        if len(chosen) + len(more) <= mine.count:
            chosen.update(dict.fromkeys(more))
    rest = [gpu for gpu in mine.has if gpu not in chosen]
    mine.keeps = [*chosen, *rest][: mine.count]


def _loss(now: Time, job: JobRow, chosen: Collection[int], state: ClusterState) -> float:
    """Return what stopping a job loses; infinity where a part is promised, useless without the rest."""
    promised = any(gpu in chosen for gpu in job.gpus)
    return float("inf") if promised else lost_by_stopping(now, job, state)


def new_places(
    now: Time, ranked: Sequence[RankedApp], allotments: Mapping[int, Allotment], state: ClusterState
) -> dict[int, list[int]]:
    """Return more GPUs for each app that gets more: first for those to whom a bad place costs most."""
    taken = {gpu for mine in allotments.values() for gpu in mine.kept}
    free = {*state.free, *state.holder} - taken
    missing = {one.app: allotments[one.app].count - len(allotments[one.app].kept) for one in ranked}
    places: dict[int, list[int]] = {}
    short = [app for app, count in missing.items() if count > 0]
    costs = {app: cost_of_spread(allotments[app].row, allotments[app].count, state) for app in short}
    for app in sorted(short, key=lambda app: costs[app], reverse=True):
        mine = allotments[app]
        places[app] = list(closest(free, missing[app], state.floor, mine.kept))
        _move_together(now, mine, places, free, state)
        free.difference_update(places[app])
    return places


def _move_together(
    now: Time, mine: Allotment, places: dict[int, list[int]], free: set[int], state: ClusterState
) -> None:
    """Let an app of one gang that gets more GPUs go to where all of them lie closer, if that gains more than
    it costs: it gives back what it kept."""
    app = mine.row.app.id
    if not mine.kept or mine.protected or len(mine.row.jobs) > 1:
        return
    (job,) = mine.row.jobs.values()
    here = [*mine.kept, *places[app]]
    there = closest(sorted({*free, *mine.kept}), mine.count, state.floor)
    before = state.pace(job.job, here)
    after = state.pace(job.job, there)
    left = job_left(now, mine.row, job, state)
    if job.gpus and left / before - left / after > WORTH * lost_by_stopping(now, job, state):
        free.update(gpu for gpu in mine.kept if gpu not in there)
        places[app] = [gpu for gpu in there if gpu not in mine.kept]
        mine.keeps = [gpu for gpu in mine.kept if gpu in there]
