"""Jobs of Salus's trace on one GPU: how much sooner the mean job is done where the shortest goes first."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

from _measure import Row
from astrarium.core.quantities import SECOND
from astrarium.device.salus_trace import trace
from lanes_parts.stage import Stage, Trainer, plain_time, say, together

KINDS = (("resnet50", 32), ("resnet18", 64), ("mobilenet_v2", 64), ("bert_base", 8), ("transformer", 16))
JOBS = 20
FASTER = 100  # Salus's jobs of 1, 5 and 10 minutes last 0.6, 3 and 6 seconds
TRACE_SEEDS = (1,)
TRACE_BAR = 2.0


@dataclass
class Arrival:
    at: float
    job: Trainer
    iterations: int


def shortest_first(stage: Stage) -> list[Row]:
    """Measure the mean time from arrival to completion, FIFO over SRTF, of the same jobs."""
    jobs = [stage.trainer(*KINDS[number % len(KINDS)]) for number in range(JOBS)]
    times = {job.name: plain_time(stage, job) for job in jobs[: len(KINDS)]}
    ratios = []
    means = {"fifo": list[float](), "srtf": list[float]()}
    for seed in TRACE_SEEDS:
        arrivals = _arrivals(stage, jobs, times, seed)
        for policy in means:
            means[policy].append(_mean_completion(stage, policy, arrivals))
            say(f"SRTF: trace {seed}, {policy}: {means[policy][-1]:.2f} s on the mean")
        ratios.append(means["fifo"][-1] / means["srtf"][-1])
    rows = [Row(f"{JOBS} jobs: mean completion, FIFO over SRTF", "x", ratios, TRACE_BAR)]
    return rows + [
        Row(f"{JOBS} jobs: mean completion, {name}", "s", seconds) for name, seconds in means.items()
    ]


def _arrivals(stage: Stage, jobs: list[Trainer], times: dict[str, float], seed: int) -> list[Arrival]:
    """Lengths and arrivals as in the simulated trace of Salus's Table 2.1, faster; our own networks."""
    arrivals = []
    for job, drawn in zip(jobs, trace(JOBS, seed), strict=True):
        length = stage.seconds(drawn.iterations * drawn.workload.iteration / SECOND / FASTER)
        at = stage.seconds(drawn.arrival / SECOND / FASTER)
        arrivals.append(Arrival(at, job, max(4, round(length / times[job.name]))))
    return arrivals


def _mean_completion(stage: Stage, policy: str, arrivals: list[Arrival]) -> float:
    gpu = stage.gpu(policy)
    began = time.perf_counter()

    def train(arrival: Arrival) -> float:
        time.sleep(max(0.0, began + arrival.at - time.perf_counter()))
        job = arrival.job
        with gpu.attached(job.name, job.model, job.optimizer, iterations=arrival.iterations):
            for _ in range(arrival.iterations):
                job.step()
        return time.perf_counter() - began - arrival.at

    seconds = together([partial(train, arrival) for arrival in arrivals])
    return sum(seconds) / len(seconds)
