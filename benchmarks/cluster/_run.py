"""One simulated cluster in a process of its own: `_run.py shockwave|philly GPUS JOBS POLICY`.

`shockwave`: jobs as in Shockwave's traces (gangs of 1, 2 and 4, a median of 50 minutes, and as many for
each GPU). `philly`: the first so many jobs of the Philly trace, from the folder beside the project.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

from astrarium.cluster.contract import AppArrived, Event, MachineJoined, single
from astrarium.cluster.machines import Machine
from astrarium.cluster.policies import Arbiter, cluster_policies
from astrarium.cluster.record import Watch
from astrarium.cluster.state import ClusterState
from astrarium.cluster.workloads.traces import read_trace
from astrarium.cluster.world import ClusterWorld
from astrarium.core.choice import Choice, chosen
from astrarium.core.engine import Engine
from astrarium.core.quantities import SECOND, Time
from astrarium.run.simulate import simulate

PHILLY = Path(__file__).resolve().parents[3] / "shared" / "data" / "cluster" / "philly_vc_jobs.csv"
# of 120 jobs on 32 GPUs
MEDIAN_S = 3025.0
SIGMA = 0.73
GAP_S = 41.8
GANGS = (1,) * 23 + (2,) * 5 + (4,) * 2


def shockwave(gpus: int, jobs: int) -> Iterator[tuple[Time, Event]]:
    rng = Random(0)
    at = 0.0
    for number in range(jobs):
        at += rng.expovariate(gpus / 32 / GAP_S)
        length = round(rng.lognormvariate(0.0, SIGMA) * MEDIAN_S * SECOND)
        yield round(at * SECOND), AppArrived(single(number, f"job {number}", length, rng.choice(GANGS)))


def philly(gpus: int, jobs: int) -> Iterator[tuple[Time, Event]]:
    jobs_by_arrival = sorted((job.arrival, job.name, job) for job in read_trace(PHILLY, "philly"))
    fitting = [job for _, _, job in jobs_by_arrival if job.gpus <= gpus][:jobs]
    for number, job in enumerate(fitting):
        yield job.arrival, AppArrived(single(number, job.name, job.duration, job.gpus))


def run(kind: str, gpus: int, jobs: int, policy: str) -> int:
    """Return how many jobs ended."""
    machines = [(0, MachineJoined(Machine(id=n, gpus=8, rack=n % 16, slot=4))) for n in range(gpus // 8)]
    arrivals = {"shockwave": shockwave, "philly": philly}[kind](gpus, jobs)
    state = ClusterState()
    engine = Engine(
        state, Arbiter(chosen(cluster_policies, Choice(policy))), record=Watch(state, state.slowdowns)
    )
    simulate(engine, [*machines, *arrivals], ClusterWorld())
    return sum(row.outcome == 1 for row in state.ledger.rows.values())


if __name__ == "__main__":
    print(run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
