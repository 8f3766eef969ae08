"""The setting of the authors' simulator: its workloads, its machines, its measure, and runs of ours in it.

A job is an app of its own, which runs on any number of GPUs up to its most; leases are of 20 minutes,
starts cost nothing, and jobs are slower across slots, machines and racks by what the workload says. The
workloads are files of facts (`online_NAME.csv`: job, group, start_min, serial_min, most_gpus, and the
speeds), which are not part of this repository. `drawn` has the same facts, for tests.

How much work there is, is not what the files say: their serial times sum up to 719.3 hours, but every
recorded run did 561.3 (GPU-hours times placement score, alike for 24 runs). Why is not known. Work is taken
to be less by the same factor for all jobs (`WORK`). That is an assumption, and `more_unequal` is there to
try another.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

import msgspec

from astrarium.cluster.contract import App, AppArrived, Event, Job, MachineJoined
from astrarium.cluster.fairness import rho
from astrarium.cluster.machines import Machine, Slowdowns, Spread
from astrarium.cluster.policies import Allocator, Arbiter
from astrarium.cluster.record import Watch
from astrarium.cluster.report.summary import DEFINITIONS
from astrarium.cluster.state import ClusterState
from astrarium.cluster.workloads.themis import MACHINES
from astrarium.cluster.world import ClusterWorld
from astrarium.core.engine import Engine
from astrarium.core.streams import stream
from astrarium.core.units import SECOND, Time
from astrarium.run.simulate import simulate
from astrarium_papers.themis._runs import jain

MINUTE = 60 * SECOND
LEASE = 20 * MINUTE
WORK = 561.34 / 719.35  # GPU-hours that recorded runs did, over those of the files
STARTS = {20: 13, 40: 24, 60: 20, 80: 29, 100: 27}  # minutes: jobs that come then
SPEEDS = {"light": (1.0, 0.98, 0.96), "network": (0.9, 0.7, 0.5)}  # across slots, machines, racks

MakePolicy = Callable[[], Allocator]


class SpreadJob(NamedTuple):
    """A job of the workload: when it comes, its work on one GPU, and how fast it is when it is spread."""

    start: Time
    work: Time
    most: int
    speeds: tuple[float, float, float]


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


def read(path: Path) -> list[SpreadJob]:
    with path.open() as lines:
        return [_job(row) for row in csv.DictReader(lines)]


def _job(row: dict[str, str]) -> SpreadJob:
    slots, machines, racks = (float(row[f"speed_across_{unit}"]) for unit in ("slots", "machines", "racks"))
    work = round(float(row["serial_min"]) * WORK * MINUTE)
    return SpreadJob(
        round(float(row["start_min"]) * MINUTE), work, int(row["most_gpus"]), (slots, machines, racks)
    )


def drawn(seed: int, jobs: int = 113, network: float = 1.0) -> list[SpreadJob]:
    """Return a workload with the facts of theirs: serial times of 137 to 963 minutes around 353, two jobs of
    three or so on up to 4 GPUs and the others on 2; *network* is the share of those that suffer."""
    chance, found = stream(seed, "themis", "authors"), list[SpreadJob]()
    starts = [start for start, count in STARTS.items() for _ in range(count)][:jobs]
    for start in starts:
        serial = min(963.0, max(137.0, float(chance.lognormal(5.866, 0.42))))
        most = 4 if chance.random() < 0.7 else 2
        speeds = SPEEDS["network" if chance.random() < network else "light"]
        found.append(SpreadJob(start * MINUTE, round(serial * WORK * MINUTE), most, speeds))
    return found


def more_unequal(jobs: Sequence[SpreadJob], power: float) -> list[SpreadJob]:
    """Return the same work in all, divided between jobs by a power of what they have."""
    parts = [float(job.work) ** power for job in jobs]
    whole = sum(job.work for job in jobs) / sum(parts)
    return [job._replace(work=round(part * whole)) for job, part in zip(jobs, parts, strict=True)]


def outcome(
    jobs: Sequence[SpreadJob],
    make: MakePolicy,
    machines: Sequence[Machine] = MACHINES["themis-testbed"],
) -> Outcome:
    """Run a policy on jobs, each an app of its own."""
    state = ClusterState(_slowdowns(jobs))
    watch = Watch(state, _slowdowns(jobs))
    events: list[tuple[Time, Event]] = [(0, MachineJoined(machine)) for machine in machines]
    events += [(job.start, AppArrived(_app(number, job))) for number, job in enumerate(jobs)]
    end = simulate(Engine(state, Arbiter(make()), record=watch), events, ClusterWorld(_slowdowns(jobs)))
    rows, size = list(state.ledger.rows.values()), state.floor.size
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


def _app(number: int, job: SpreadJob) -> App:
    return App(number, f"job {number}", ((Job(0, job.work, 1, job.most, _model(job)),),))


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
