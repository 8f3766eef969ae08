"""From a line to leases: who gets how many GPUs, who gives some back, and which they are.

A GPU stays with an app for as long as was promised (*protected*); beyond that it goes to whoever comes first
in line. While somebody who is pressed waits for GPUs that are promised to others, nobody gets more than it
has, so that they come together.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from astrarium.cluster.arrange import closest
from astrarium.cluster.demand import stood, usable
from astrarium.cluster.machines import Spread
from astrarium.cluster.policies.astrarium.line import Ranked, Reason
from astrarium.cluster.policies.astrarium.prospects import lost_by_stopping
from astrarium.cluster.state import AppRow, ClusterState, JobRow
from astrarium.core.units import Time

WORTH = 2.0  # a move must gain so many times what it costs


@dataclass
class Hand:
    """What an app has, with what it stood on until now; how much of it is promised, and how much it gets."""

    row: AppRow
    has: list[int]
    protected: list[int]
    count: int = 0
    keeps: list[int] | None = None

    @property
    def kept(self) -> list[int]:
        return self.has if self.keeps is None else self.keeps


def hand(row: AppRow, state: ClusterState, since: Mapping[int, tuple[int, Time]], oldest: Time) -> Hand:
    """*since*: of each GPU, who has it from when. Those given after *oldest* are promised."""
    has = [*row.leases, *(gpu for gpu in stood(row) if gpu in state.free)]
    return Hand(row, has, [gpu for gpu in has if _given(since, gpu, row.app.id) > oldest])


def _given(since: Mapping[int, tuple[int, Time]], gpu: int, app: int) -> Time:
    holder, at = since.get(gpu, (app, -1))
    return at if holder == app else -1


def deal(line: Sequence[Ranked], hands: Mapping[int, Hand], size: int) -> int | None:
    """How many each gets, in order of the line. The app whom all others wait for, if there is one."""
    room, waits_for = size - sum(len(each.protected) for each in hands.values()), None
    for ranked in line:
        mine = hands[ranked.app]
        own = len(mine.protected)
        most = own + room if waits_for is None else min(own + room, len(mine.has))
        mine.count = max(own, usable(mine.row, most))
        room -= mine.count - own
        pressed = ranked.reason is Reason.FAIRNESS and not mine.count
        if pressed and waits_for is None and usable(mine.row, size):
            waits_for = ranked.app
    return waits_for


def keep(now: Time, mine: Hand, state: ClusterState) -> None:
    """As many as it gets: what is promised, then whole jobs, those first that would lose most."""
    if len(mine.has) <= mine.count:
        return
    chosen, here = dict.fromkeys(mine.protected), set(mine.has)
    jobs = [job for job in mine.row.jobs.values() if job.gpus and here.issuperset(job.gpus)]
    for job in sorted(jobs, key=lambda job: -_loss(now, job, chosen, state)):
        more = [gpu for gpu in job.gpus if gpu not in chosen]
        if len(chosen) + len(more) <= mine.count:
            chosen.update(dict.fromkeys(more))
    rest = [gpu for gpu in mine.has if gpu not in chosen]
    mine.keeps = [*chosen, *rest][: mine.count]


def _loss(now: Time, job: JobRow, chosen: Collection[int], state: ClusterState) -> float:
    """What is promised of it is of no use without the rest."""
    promised = any(gpu in chosen for gpu in job.gpus)
    return float("inf") if promised else lost_by_stopping(now, job, state)


def new_places(
    line: Sequence[Ranked], hands: Mapping[int, Hand], state: ClusterState
) -> dict[int, list[int]]:
    """More GPUs for each that gets more: first those to whom a bad place costs most."""
    taken = {gpu for each in hands.values() for gpu in each.kept}
    free = set(state.free) - taken
    missing = {each.app: hands[each.app].count - len(hands[each.app].kept) for each in line}
    found: dict[int, list[int]] = {}
    short = [app for app, count in missing.items() if count > 0]
    for app in sorted(short, key=lambda app: _cost(hands[app], state), reverse=True):
        found[app] = list(closest(free, missing[app], state.floor, hands[app].kept))
        free.difference_update(found[app])
    return found


def better_place(
    now: Time, ranked: Ranked, mine: Hand, free: Collection[int], state: ClusterState
) -> list[int]:
    """For an app of one gang that lies apart: GPUs that are closer, if moving gains more than it costs."""
    if len(mine.row.jobs) > 1 or mine.protected or mine.keeps is not None or mine.count > len(mine.has):
        return []
    (job,) = mine.row.jobs.values()
    if not job.gpus or state.floor.spread(job.gpus) < Spread.RACK or len(job.gpus) != mine.count:
        return []
    there = closest(sorted({*free, *mine.has}), mine.count, state.floor)
    slower = state.pace(job.job, job.gpus) / state.pace(job.job, there)
    cost = lost_by_stopping(now, job, state)
    return list(there) if ranked.prospect.span * (1 - slower) > WORTH * cost and slower < 1 else []


def _cost(mine: Hand, state: ClusterState) -> tuple[float, int]:
    """GPUs that would be wasted if its jobs lay on several machines."""
    network = next((machine.network for machine in state.floor.machines.values()), "")
    wide = (job.job.model for job in mine.row.unfinished() if job.job.most > 1)
    slower = max((state.slowdowns.of(model, network, Spread.RACK) for model in wide), default=1.0)
    return (slower - 1.0) * mine.count, mine.count
