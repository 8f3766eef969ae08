"""What is too much to simulate is refused before it is tried.

That is more turns than anybody waits for, and times beyond the end of time, after which nothing happens.
"""

from __future__ import annotations

from astrarium.core.errors import InputError
from astrarium.core.quantities import FOREVER, SECOND, Time
from astrarium.device.contract import Job
from astrarium.device.scenario.schema import Gpu, JobEntry, Mix

MOST_TURNS = 20_000_000  # some ten minutes
LONGEST: Time = FOREVER // 2  # for arrivals, and for all that follows the last: 18 years each
_YEAR = 365 * 24 * 3600 * SECOND


class Limits:
    """`check` is called for every job, in any order, and adds up turns and time over all of them."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._turns = 0
        self._time = 0.0

    def check(self, at: Time, job: Job, entry: JobEntry | Mix, place: int) -> None:
        if at > LONGEST:
            raise InputError(_when(entry, place), None, f"arrivals within {LONGEST // _YEAR} years")
        self._turns += job.iterations
        if self._turns > MOST_TURNS:
            raise InputError(_how_long(entry, place), None, self._fewer())
        turn = job.iteration * (1 + self._gpu.overhead) + self._gpu.switch + self._gpu.pause
        self._time += turn * job.iterations
        if self._time > LONGEST:
            what = f"jobs that take less than {LONGEST // _YEAR} years together, pauses and switches included"
            raise InputError(_how_long(entry, place), None, what)

    def _fewer(self) -> str:
        now = f"it is {self._gpu.turn / SECOND:g}s" if self._gpu.turn else "such as 10s"
        return f"at most {MOST_TURNS:,} turns of all jobs; a longer gpu.turn ({now}) makes them fewer"


def _when(entry: JobEntry | Mix, place: int) -> str:
    if isinstance(entry, Mix):
        return "jobs.interval"
    return f"jobs[{place}].{'every' if entry.count > 1 else 'arrival'}"


def _how_long(entry: JobEntry | Mix, place: int) -> str:
    if isinstance(entry, Mix):
        return "jobs.salus"
    return f"jobs[{place}].{'length' if entry.iterations is None else 'iterations'}"
