"""Jobs that share a lane: what a change of jobs costs, and whether equal jobs get equal shares."""

from __future__ import annotations

import threading
import time
from collections import Counter
from functools import partial
from itertools import pairwise

from _measure import Row
from lanes_parts.stage import WARM, Mark, Stage, Trainer, percentile, plain_time, say, together

PAIRS = ((("resnet50", 32), ("resnet50", 32)), (("resnet50", 128), ("bert_base", 8)))
TURNS = 200
REPEATS = 2
FIRST = 16  # turns of a job, which are not counted: much is made in them
SWITCH_BAR = 1.0  # ms
EQUAL = ("resnet50", 64)
EQUAL_BAR = 5.0  # percent
WINDOWS = 3  # parts of the time in which all are there
SETTLED = 0.2  # of an interval, after the last has come


def switching(stage: Stage) -> list[Row]:
    rows = []
    for pair in PAIRS:
        with stage.tidy():
            rows += _pair(stage, pair)
    return rows


def _pair(stage: Stage, pair: tuple[tuple[str, int], ...]) -> list[Row]:
    name = " and ".join(f"{model} b{batch}" for model, batch in pair)
    jobs = [stage.trainer(*workload) for workload in pair]
    alone = {job.name: plain_time(stage, job) for job in jobs}
    host = []
    device = []
    slower = []
    for repeat in range(REPEATS):
        marks, names = _turns(stage, jobs, stage.count(TURNS))
        stage.sync()
        gaps = _gaps(marks, stage.count(FIRST))
        host.append(percentile([gap for gap, _ in gaps], 0.99))
        device.append(percentile([gap for _, gap in gaps], 0.99))
        slower.append(_slower(marks, {job: alone[name] for job, name in names.items()}))
        say(
            f"switching {name}: {repeat + 1}/{REPEATS}, {len(gaps)} changes, p50 "
            f"{percentile([gap for _, gap in gaps], 0.5):.3f} ms, p99 {device[-1]:.3f} ms on the GPU"
        )
    return [
        Row(f"switch {name}: p99 on the GPU", "ms", device, SWITCH_BAR, True),
        Row(f"switch {name}: p99 on the host", "ms", host, SWITCH_BAR, True),
        Row(f"switch {name}: both, over plain loops one after the other", "% slower", slower),
    ]


def _turns(stage: Stage, jobs: list[Trainer], count: int) -> tuple[list[Mark], dict[int, str]]:
    """Return all marks of the turns, and the jobs' names."""
    gpu, backend = stage.marked("fair")
    all_there = threading.Barrier(len(jobs))

    def train(job: Trainer) -> None:
        with gpu.attached(job.name, job.model, job.optimizer):
            for _ in range(WARM):  # in which it is measured
                job.step()
            all_there.wait()
            for _ in range(count):
                job.step()
            all_there.wait()

    together([partial(train, job) for job in jobs])
    return backend.marks, {row.job.id: row.job.name for row in gpu.rows()}


def _slower(marks: list[Mark], alone: dict[int, float]) -> float:
    """Return by how many percent, over the time in which both were there."""
    both = _while_both([mark for mark in marks if mark.begins])
    expected = sum(alone[mark.job] for mark in both[:-1])
    return 100 * ((both[-1].at - both[0].at) / 1e9 / expected - 1) if expected else 0.0


def _while_both(begins: list[Mark]) -> list[Mark]:
    """Return the marks from when the second has come to when the first has gone."""
    jobs = {mark.job for mark in begins}
    first = max(next(mark.at for mark in begins if mark.job == job) for job in jobs)
    last = min(max(mark.at for mark in begins if mark.job == job) for job in jobs)
    return [mark for mark in begins if first <= mark.at <= last]


def _gaps(marks: list[Mark], first: int = 0) -> list[tuple[float, float]]:
    """Return times from the end of a job's turn to the beginning of another's: on the host and on the GPU, in
    ms."""
    gaps = []
    turns: Counter[int] = Counter()
    for end, begin in pairwise(marks):
        turns[begin.job] += begin.begins
        if begin.begins and not end.begins and begin.job != end.job and turns[begin.job] > first:
            gaps.append(((begin.at - end.at) / 1e6, end.event.elapsed_time(begin.event)))
    return gaps


def equal_shares(stage: Stage, interval: float) -> list[Row]:
    """Three jobs come one after the other; shares are of the time in which all of them are there."""
    interval = stage.seconds(interval)
    jobs = [stage.trainer(*EQUAL) for _ in range(3)]
    gpu = stage.gpu("fair")
    began = time.perf_counter()
    done: list[list[float]] = [[] for _ in jobs]

    def train(number: int) -> None:
        time.sleep(number * interval)
        job = jobs[number]
        with gpu.attached(f"{job.name} no. {number}", job.model, job.optimizer):
            while (now := time.perf_counter() - began) < 3 * interval:
                job.step()
                done[number].append(now)

    say(f"equal shares: three jobs, {interval:g} s apart")
    together([partial(train, number) for number in range(3)])
    start = (2 + SETTLED) * interval
    stop = 3 * interval
    values = []
    for window in range(WINDOWS):
        low, high = (start + (stop - start) * part / WINDOWS for part in (window, window + 1))
        counts = [sum(low <= at < high for at in times) for times in done]
        mean = max(1e-9, sum(counts) / len(counts))
        values.append(100 * max(abs(count / mean - 1) for count in counts))
        say(f"equal shares: window {window + 1}, iterations {counts}")
    return [Row("three equal jobs: farthest from an equal share", "%", values, EQUAL_BAR, True)]
