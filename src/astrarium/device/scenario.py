"""Scenario files whose subject is jobs on one GPU: read, overridden, checked in every part.

gpu: {memory: 16GB}
jobs:
  - {name: big, workload: salus:resnet152_75, length: 10min}
  - {name: small, persistent: 100MB, ephemeral: 1GB, iteration: 50ms, iterations: 200, arrival: 30s}
policy: {name: srtf}
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec

from astrarium.core.choice import DEFAULT_SEED, Seed, WrittenScenario, read_policy
from astrarium.core.decode import Decoder, check_keys, check_names
from astrarium.core.errors import InputError, written_in
from astrarium.core.quantities import FOREVER, SECOND, Bytes, Duration, Time
from astrarium.device import salus as workloads
from astrarium.device.contract import Job
from astrarium.device.policies import iteration_policies
from astrarium.device.salus import SalusWorkload, TraceJob

DEFAULT_POLICY = "fair"
SECTIONS = ("gpu", "jobs", "policy", "seed")
FROM_SALUS = "salus:"

Count = Annotated[int, msgspec.Meta(ge=1)]
JobCount = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Overhead = Annotated[float, msgspec.Meta(ge=0, le=10)]
Power = Annotated[float, msgspec.Meta(ge=-10, le=10)]

_OF_A_WORKLOAD = ("persistent", "ephemeral", "iteration", "demand")
_NEEDED = ("persistent", "ephemeral", "iteration")


class Gpu(msgspec.Struct, frozen=True):
    """`switch` is what a change of jobs in a lane costs, `overhead` what every iteration does, as a share,
    and `pause` how long a job then needs for its next data. Iterations shorter than a `turn` are run as many
    at a time as fill it."""

    memory: Bytes = workloads.GPU_MEMORY
    switch: Duration = Duration(0)
    overhead: Overhead = 0.0
    pause: Duration = Duration(0)
    turn: Duration = Duration(0)

    def __post_init__(self) -> None:
        if not self.memory:
            raise InputError("memory", 0, "more than nothing, such as 16GB")


class JobEntry(msgspec.Struct, frozen=True):
    """`count` jobs, `every` so long: NAME, or NAME-0, NAME-1, ... where there are several."""

    name: str
    workload: str | None = None
    persistent: Bytes | None = None
    ephemeral: Bytes | None = None
    iteration: Duration | None = None
    demand: Share | None = None
    iterations: Count | None = None
    length: Duration | None = None
    arrival: Duration = Duration(0)
    count: JobCount = 1
    every: Duration = Duration(0)
    priority: int = 0

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise InputError("name", self.name, "a name")
        if self.every and self.count == 1:
            raise InputError("every", f"{self.every}ns", "a count of several jobs with it, such as count: 3")
        if self.workload is None:
            self._check_complete()
        else:
            self._check_workload(self.workload)
        if (self.iterations is None) == (self.length is None):
            raise InputError("iterations", self.iterations, "either iterations or a length such as 5min")
        if self.length == 0 or self.iteration == 0:
            field = "length" if self.length == 0 else "iteration"
            raise InputError(field, "0s", "a duration above 0")

    @property
    def names(self) -> list[str]:
        return [self.name] if self.count == 1 else [f"{self.name}-{place}" for place in range(self.count)]

    def _check_complete(self) -> None:
        for name in _NEEDED:
            if getattr(self, name) is None:
                what = (
                    f"a value, or a workload such as {FROM_SALUS}resnet50_50 in place of {', '.join(_NEEDED)}"
                )
                raise InputError(name, None, what)

    def _check_workload(self, workload: str) -> None:
        if not workload.startswith(FROM_SALUS):
            raise InputError("workload", workload, f"{FROM_SALUS}NAME, such as {FROM_SALUS}resnet50_50")
        with written_in("workload", workload):
            workloads.lookup(workload.removeprefix(FROM_SALUS))
        for name in _OF_A_WORKLOAD:
            if getattr(self, name) is not None:
                raise InputError(name, getattr(self, name), f"nothing here: {workload} says it")


class Mix(msgspec.Struct, frozen=True):
    """So many jobs of Salus's Table A.1, drawn as device/salus.py says."""

    salus: JobCount
    interval: Duration = Duration(workloads.INTERVAL)
    tail: Power = workloads.TAIL
    early: Power = workloads.EARLY


class JobScenario(WrittenScenario, frozen=True, kw_only=True):
    """Jobs on one GPU: what they need, when they come, and the policy that gives them turns."""

    level: ClassVar[str] = "device"
    policies = iteration_policies
    gpu: Gpu
    jobs: tuple[JobEntry, ...] | Mix


def parse(raw: Any, path: Path = Path()) -> JobScenario:
    if not isinstance(raw, dict):
        raise InputError("", raw, "a mapping with gpu and jobs")
    check_keys(raw, list(SECTIONS), "")
    decode = Decoder().decode
    return JobScenario(
        gpu=decode(Gpu, {} if raw.get("gpu") is None else raw["gpu"], "gpu"),
        jobs=_jobs(raw.get("jobs"), decode),
        policy=read_policy(raw.get("policy"), iteration_policies, DEFAULT_POLICY),
        seed=decode(Seed, raw.get("seed", DEFAULT_SEED), "seed"),
        raw=raw,
        source=str(path),
    )


def _jobs(raw: Any, decode: Any) -> tuple[JobEntry, ...] | Mix:
    if isinstance(raw, dict):
        mix: Mix = decode(Mix, raw, "jobs")
        if not mix.interval:
            raise InputError("jobs.interval", "0s", "a duration above 0, such as 30s")
        return mix
    if not isinstance(raw, list) or not raw:
        raise InputError("jobs", raw, "a list of jobs, or a mix such as {salus: 100}")
    entries: tuple[JobEntry, ...] = decode(tuple[JobEntry, ...], raw, "jobs")
    check_names(entries, "jobs", "job")
    return entries


# What is too much to simulate, said before it is tried: more turns than anybody waits for, and times beyond
# the end of time, after which nothing happens any more.


MOST_TURNS = 20_000_000  # some ten minutes
LONGEST: Time = FOREVER // 2  # for arrivals, and for all that follows the last: 18 years each
_YEAR = 365 * 24 * 3600 * SECOND


class Limits:
    """Hears of every job with the entry that it comes from, and that entry's place."""

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
        each = job.iteration * (1 + self._gpu.overhead) + self._gpu.switch + self._gpu.pause
        self._time += each * job.iterations
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


# From described jobs to those that the device level knows, with the instants at which they arrive.


Arrival = tuple[Time, Job]


def arrivals(scenario: JobScenario) -> list[Arrival]:
    """In order of time; jobs are numbered in that order."""
    jobs = scenario.jobs
    turn = scenario.gpu.turn
    limits = Limits(scenario.gpu)
    found: list[Arrival] = []
    entries: tuple[JobEntry | Mix, ...] = (jobs,) if isinstance(jobs, Mix) else jobs
    for place, entry in enumerate(entries):
        for at, job in _mix(entry, scenario.seed, turn) if isinstance(entry, Mix) else _copies(entry, turn):
            limits.check(at, job, entry, place)
            found.append((at, job))
    found.sort(key=lambda one: one[0])
    return [(at, msgspec.structs.replace(job, id=number)) for number, (at, job) in enumerate(found)]


def arrivals_of(trace: Iterable[TraceJob], turn: Time = 0) -> list[Arrival]:
    return [(each.arrival, job_of(i, each.workload, each.iterations, turn)) for i, each in enumerate(trace)]


def job_of(number: int, workload: SalusWorkload, iterations: int, turn: Time = 0, name: str = "") -> Job:
    """Iterations shorter than a *turn* are run as many at a time as fill it: less to simulate, and as much
    work."""
    size = (workload.persistent, workload.ephemeral)
    turns = divided(workload.iteration, iterations, turn)
    return Job(number, name or workload.name, *size, *turns, demand=workload.demand)


def divided(iteration: Time, iterations: int, turn: Time) -> tuple[Time, int]:
    """How long a turn is, and how many there are: about as long as asked, and as long together as all
    iterations."""
    if turn <= iteration:
        return iteration, iterations
    total = iteration * iterations
    turns = max(1, round(total / turn))
    return max(1, round(total / turns)), turns


def _mix(mix: Mix, seed: int, turn: Time) -> list[Arrival]:
    return arrivals_of(workloads.trace(mix.salus, seed, mix.interval, mix.tail, mix.early), turn)


def _copies(entry: JobEntry, turn: Time) -> Iterator[Arrival]:
    workload = _workload(entry)
    iterations = entry.iterations or max(1, round((entry.length or 0) / workload.iteration))
    for place, name in enumerate(entry.names):
        job = job_of(0, workload, iterations, turn, name)
        yield entry.arrival + place * entry.every, msgspec.structs.replace(job, priority=entry.priority)


def _workload(entry: JobEntry) -> SalusWorkload:
    if entry.workload is not None:
        return workloads.lookup(entry.workload.removeprefix(FROM_SALUS))
    size = (entry.persistent or Bytes(0), entry.ephemeral or Bytes(0))
    return SalusWorkload(entry.name, "", "", "", *size, entry.iteration or Duration(1), entry.demand or 1.0)
