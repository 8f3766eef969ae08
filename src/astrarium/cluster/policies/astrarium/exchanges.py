"""A job that lies apart moves to where its GPUs lie closer, if that gains more than it costs.

Where no such GPUs are free, jobs on a single GPU make room: to them all places are the same, and they get
what the other leaves. All of them start anew, which is what an exchange costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from astrarium.cluster.arrange import closest
from astrarium.cluster.contract import Grant, Revoke
from astrarium.cluster.machines import Spread
from astrarium.cluster.policies.astrarium.allotments import WORTH, Allotment
from astrarium.cluster.policies.astrarium.explanations import CLOSER, MAKES_ROOM
from astrarium.cluster.policies.astrarium.prospects import job_left, lost_by_stopping
from astrarium.cluster.state import AppRow, ClusterState, JobRow
from astrarium.core.quantities import SECOND, Time

LEAST: Time = 30 * SECOND  # what a start is taken to cost, where less is known of it


class _Placed(NamedTuple):
    row: AppRow
    job: JobRow  # which runs


def exchanges(
    now: Time, until: Time, allotments: Mapping[int, Allotment], state: ClusterState
) -> Iterator[Grant | Revoke]:
    """Yield what changes hands, one exchange after the other; the books follow each action."""
    steady = [mine for mine in allotments.values() if mine.keeps is None and mine.count <= len(mine.has)]
    jobs = [_Placed(mine.row, job) for mine in steady for job in mine.row.jobs.values() if _rests(mine, job)]
    alone = {placed.job.gpus[0]: placed for placed in jobs if len(placed.job.gpus) == 1}
    for one in jobs:
        if state.floor.spread(one.job.gpus) >= Spread.RACK and not state.lies_well(one.job.job, one.job.gpus):
            there = _closest(one, alone, state)
            if _pays(now, one, there, alone, state):
                yield from _exchanged(until, one, there, alone)


def _rests(mine: Allotment, job: JobRow) -> bool:
    """Return whether a job runs on GPUs that nobody has just been given, and that its app keeps."""
    return bool(job.gpus) and all(gpu in mine.row.leases and gpu not in mine.protected for gpu in job.gpus)


def _closest(one: _Placed, alone: Mapping[int, _Placed], state: ClusterState) -> Sequence[int]:
    """Return as many GPUs that are free, its own, or others' to give: best beside the most that it has."""
    theirs = [gpu for gpu, other in alone.items() if other.row is not one.row]
    pool = {*state.free, *theirs, *one.job.gpus}
    count = len(one.job.gpus)
    beside = max(state.floor.by_machine(one.job.gpus).values(), key=len)
    near = [*beside, *closest(pool.difference(beside), count - len(beside), state.floor, beside)]
    return max(near, closest(pool, count, state.floor), key=lambda gpus: state.pace(one.job.job, gpus))


def _pays(
    now: Time, one: _Placed, there: Sequence[int], alone: Mapping[int, _Placed], state: ClusterState
) -> bool:
    stopped = [one.job, *(alone[gpu].job for gpu in there if gpu in alone)]
    before, after = (state.pace(one.job.job, gpus) for gpus in (one.job.gpus, there))
    gains = job_left(now, one.row, one.job, state) * (1 / before - 1 / after)
    return gains > WORTH * sum(max(LEAST, lost_by_stopping(now, job, state)) for job in stopped)


def _exchanged(
    until: Time, one: _Placed, there: Sequence[int], alone: dict[int, _Placed]
) -> Iterator[Grant | Revoke]:
    gone = tuple(gpu for gpu in one.job.gpus if gpu not in there)
    others = [(gpu, alone.pop(gpu).row.app.id) for gpu in there if gpu in alone]
    yield Revoke(one.row.app.id, gone, CLOSER)
    yield from (Revoke(other, (gpu,), MAKES_ROOM) for gpu, other in others)
    yield Grant(one.row.app.id, tuple(gpu for gpu in there if gpu not in one.job.gpus), until, CLOSER)
    for gpu, (_, other) in zip(gone, others, strict=False):
        yield Grant(other, (gpu,), until, MAKES_ROOM)
