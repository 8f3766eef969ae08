"""The setting of the authors' simulator: its workloads, its machines, its measure, and runs of ours in it.

A job is an app of its own, which runs on any number of GPUs up to its most; leases are of 20 minutes,
starts cost nothing, and jobs are slower across slots, machines and racks by what the workload says. The
workloads are files of facts (`online_NAME.csv`: job, group, start_min, serial_min, most_gpus, and the
speeds), which are not part of this repository. `drawn` has the same facts, for tests.

Jobs of a group are a search by successive halving, decided before it begins: from the shortest on, half of
those left stop at the first rung, half of the others at the second, and so on (`halved`; rungs are as far
apart as the longest job is long, over log2 of how many there are). That is why serial times of the files sum
up to 719.3 hours, and every recorded run did 561.3 (GPU-hours times placement score).

Which machines theirs were is not recorded, and a run changes with them: ours are several runs (`outcomes`).
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from math import floor, log2
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

import msgspec

from astrarium.cluster.contract import App, AppArrived, Event, Job, MachineJoined
from astrarium.cluster.fairness import rho
from astrarium.cluster.machines import Machine, Spread
from astrarium.cluster.policies import Allocator, Arbiter
from astrarium.cluster.record import Watch
from astrarium.cluster.report.summary import DEFINITIONS
from astrarium.cluster.slowdowns import Slowdowns
from astrarium.cluster.state import ClusterState
from astrarium.cluster.world import ClusterWorld
from astrarium.core.engine import Engine
from astrarium.core.quantities import SECOND, Time
from astrarium.core.random_streams import stream
from astrarium.run.simulate import simulate
from astrarium_papers.themis._runs import jain
from astrarium_papers.themis.authors.loss_seeds import loss_seeds

MINUTE = 60 * SECOND
LEASE = 20 * MINUTE
STARTS = {20: 13, 40: 24, 60: 20, 80: 29, 100: 27}  # minutes: jobs that come then
ITERATION = 0.0055 * MINUTE  # of most of their jobs, on one GPU
MULTIPLIER = 0x5DEECE66D  # of java.util.Random
SPEEDS = {"light": (1.0, 0.98, 0.96), "network": (0.9, 0.7, 0.5)}  # across slots, machines, racks


def _layout(*racks: Sequence[int]) -> list[Machine]:
    """Return machines, of which slots have 2 GPUs, with so many GPUs in each rack."""
    places = [(rack, gpus) for rack, sizes in enumerate(racks) for gpus in sizes]
    return [Machine(number, gpus, rack, 2) for number, (rack, gpus) in enumerate(places)]


# 64 GPUs in 2 racks, on the paper's machines: 12 of 4 GPUs and 8 of 2. In which order is not recorded
LARGE_FIRST = [4] * 6 + [2] * 4
SMALL_FIRST = [2] * 4 + [4] * 6
MIXED = [4, 2] * 4 + [4] * 2
LAYOUTS = (
    _layout(LARGE_FIRST, LARGE_FIRST),
    _layout(SMALL_FIRST, SMALL_FIRST),
    _layout(MIXED, MIXED),
    _layout([4] * 8, [4] * 4 + [2] * 8),
)


class LossCurve(NamedTuple):
    """The loss of a job after so many iterations, but for a constant."""

    square: float = 0.5
    linear: float = 0.5
    constant: float = 1.0

    def loss(self, iterations: float) -> float:
        return 1.0 / (self.square * iterations**2 + self.linear * iterations + self.constant)


def loss_curve(seed: int, iterations: int) -> LossCurve:
    """Return the curve of a job of so many iterations. Its factors are the first two numbers that Java's
    generator (a linear congruential one) draws with the seed."""
    state = (seed ^ MULTIPLIER) % 2**48
    factors = list[float]()
    for _ in range(2):
        state = (state * MULTIPLIER + 11) % 2**48
        high = state >> 22
        state = (state * MULTIPLIER + 11) % 2**48
        factors.append(((high << 27) + (state >> 21)) / 2**53)
    square, linear = factors
    return LossCurve(square, linear, 1.0 / (1.0 + 1.0 / (square * iterations**2 + linear * iterations)))


class SpreadJob(NamedTuple):
    """A job of the workload: when it comes, its work on one GPU, and how fast it is when it is spread. An
    *iteration* is so long on one GPU."""

    start: Time
    work: Time
    most: int
    speeds: tuple[float, float, float]
    iteration: float
    group: int
    curve: LossCurve = LossCurve()


MakePolicy = Callable[[Sequence[SpreadJob]], Allocator]


class Outcome(msgspec.Struct, frozen=True):
    """The numbers of a run; *rho* by definition, for all jobs. *score*: mean speed, weighed by GPU time."""

    rho: dict[str, list[float]]
    completion_min: float
    gpu_hours: float
    score: float

    @property
    def worst(self) -> float:
        return max(self.rho["demand"])

    @property
    def median(self) -> float:
        return median(self.rho["demand"])

    @property
    def jain(self) -> float:
        return jain(self.rho["demand"])


def read(path: Path, *, halve: bool = True) -> list[SpreadJob]:
    seeds = loss_seeds(path.stem.removeprefix("online_"))
    with path.open() as file:
        jobs = [_job(row, seeds) for row in csv.DictReader(file)]
    return halved(jobs) if halve else jobs


def _job(row: dict[str, str], seeds: Mapping[int, int]) -> SpreadJob:
    number = int(row["job"])
    slots, machines, racks = (float(row[f"speed_across_{unit}"]) for unit in ("slots", "machines", "racks"))
    work = round(float(row["serial_min"]) * MINUTE)
    iterations = int(row["iterations"])
    return SpreadJob(
        round(float(row["start_min"]) * MINUTE), work, int(row["most_gpus"]), (slots, machines, racks),
        work / iterations, int(row["group"]), loss_curve(seeds.get(number, number), iterations),
    )  # fmt: skip


def halved(jobs: Sequence[SpreadJob]) -> list[SpreadJob]:
    """Return jobs that stop where successive halving within their group ends them, the shortest first."""
    half = list(jobs)
    for group in {job.group: None for job in jobs}:
        by_length = [place for place, job in enumerate(jobs) if job.group == group]
        by_length.sort(key=lambda place: (round(jobs[place].work / jobs[place].iteration), place))
        longest = jobs[by_length[-1]]
        rung = longest.work / longest.iteration // max(1, floor(log2(len(by_length))))
        first = 0
        count = 1
        while first < len(by_length) - 1:
            last = first + (len(by_length) - first) // 2
            for place in by_length[first:last]:
                job = jobs[place]
                half[place] = job._replace(work=min(job.work, round(count * rung * job.iteration)))
            first = last
            count = count + 1
    return half


def drawn(seed: int, jobs: int = 113, network: float = 1.0) -> list[SpreadJob]:
    """Return a workload with the facts of theirs: serial times of 137 to 963 minutes around 353, two jobs of
    three or so on up to 4 GPUs and the others on 2; *network* is the share of those that suffer."""
    chance = stream(seed, "themis", "authors")
    spread = list[SpreadJob]()
    starts = [start for start, count in STARTS.items() for _ in range(count)][:jobs]
    for number, start in enumerate(starts):
        serial = min(963.0, max(137.0, float(chance.lognormal(5.866, 0.42))))
        most = 4 if chance.random() < 0.7 else 2
        speeds = SPEEDS["network" if chance.random() < network else "light"]
        work = round(serial * MINUTE)
        curve = loss_curve(number, round(serial * MINUTE / ITERATION))
        spread.append(SpreadJob(start * MINUTE, work, most, speeds, ITERATION, start // 20, curve))
    return halved(spread)


def outcome(
    jobs: Sequence[SpreadJob],
    make: MakePolicy,
    machines: Sequence[Machine] = LAYOUTS[0],
) -> Outcome:
    """Run a policy on jobs, each an app of its own."""
    state = ClusterState(_slowdowns(jobs))
    watch = Watch(state, _slowdowns(jobs))
    events: list[tuple[Time, Event]] = [(0, MachineJoined(machine)) for machine in machines]
    events += [(job.start, AppArrived(_app(number, job))) for number, job in enumerate(jobs)]
    end = simulate(Engine(state, Arbiter(make(jobs)), record=watch), events, ClusterWorld(_slowdowns(jobs)))
    rows = list(state.ledger.rows.values())
    size = state.floor.size
    ran = watch.record("", rows, end).ran
    weights = [len(run.gpus) * (run.end - run.start) for run in ran]
    return Outcome(
        {
            name: [rho(row.ended - row.arrived, row.app, size, row.contention, name) for row in rows]
            for name in DEFINITIONS
        },
        fmean((row.ended - row.arrived) / MINUTE for row in rows),
        sum(row.service for row in rows) / 60 / MINUTE,
        sum(run.score * weight for run, weight in zip(ran, weights, strict=True)) / sum(weights),
    )


def outcomes(jobs: Sequence[SpreadJob], make: MakePolicy) -> list[Outcome]:
    """Run a policy on each of the layouts that theirs may have been."""
    return [outcome(jobs, make, machines) for machines in LAYOUTS]


def _app(number: int, job: SpreadJob) -> App:
    iterations = round(job.work / job.iteration)
    return App(
        number, f"job {number}", ((Job(0, job.work, 1, job.most, _model(job), iterations=iterations),),)
    )


def iteration(job: Job) -> float:
    """Return how long an iteration of a job takes on one GPU."""
    return job.work / job.iterations


def _model(job: SpreadJob) -> str:
    return " ".join(f"{speed:g}" for speed in job.speeds)


def _slowdowns(jobs: Sequence[SpreadJob]) -> Slowdowns:
    units = (Spread.MACHINE, Spread.RACK, Spread.CLUSTER)
    known = {
        (_model(job), ""): {
            Spread.SLOT: 1.0,
            **{unit: 1.0 / speed for unit, speed in zip(units, job.speeds, strict=True)},
        }
        for job in jobs
    }
    return Slowdowns(known)
