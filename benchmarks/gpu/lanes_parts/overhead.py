"""What a lane costs a job that has the GPU for itself, step by step from a plain loop to an attached one."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from _measure import Row
from lanes_parts.stage import Stage, Trainer, in_thread, say, timed

CASES = (("resnet50", 128), ("resnet50", 32), ("bert_base", 8))
REPEATS = 3
SECONDS = 0.4
POLICY = "fair"
BAR = 3.0  # percent

Mode = Callable[[Stage, Trainer, int], float]


def plain(stage: Stage, job: Trainer, count: int) -> float:
    return timed(stage, job.step, count)


def other_thread(stage: Stage, job: Trainer, count: int) -> float:
    return in_thread(lambda: timed(stage, job.step, count))


def backward_in_thread(stage: Stage, job: Trainer, count: int) -> float:
    def run() -> float:
        with torch.autograd.set_multithreading_enabled(False):
            return timed(stage, job.step, count)

    return in_thread(run)


def own_stream(stage: Stage, job: Trainer, count: int) -> float:
    def run() -> float:
        with _stream(stage), torch.autograd.set_multithreading_enabled(False):
            return timed(stage, job.step, count)

    return in_thread(run)


def own_pool(stage: Stage, job: Trainer, count: int) -> float:
    """The pool is entered and left at each iteration, as in a lane; there are no turns."""

    def run() -> float:
        pool = None if stage.pretend else torch.cuda.MemPool()

        def step() -> None:
            with nullcontext() if pool is None else torch.cuda.use_mem_pool(pool):
                job.step()

        with _stream(stage), torch.autograd.set_multithreading_enabled(False):
            return timed(stage, step, count)

    return in_thread(run)


def lane(stage: Stage, job: Trainer, count: int) -> float:
    def run() -> float:
        with stage.gpu(POLICY).job(job.name) as turns:

            def step() -> None:
                with turns.iteration():
                    job.step()

            return timed(stage, step, count)

    return in_thread(run)


def attached(stage: Stage, job: Trainer, count: int) -> float:
    def run() -> float:
        with stage.gpu(POLICY).attached(job.name, job.model, job.optimizer):
            return timed(stage, job.step, count)

    return in_thread(run)


def _stream(stage: Stage) -> AbstractContextManager[object]:
    return nullcontext() if stage.pretend else torch.cuda.stream(torch.cuda.Stream())


MODES: dict[str, Mode] = {
    "in another thread": other_thread,
    "and backward in that thread": backward_in_thread,
    "and on a stream of its own": own_stream,
    "and in a pool of its own": own_pool,
    "lane, with job.iteration()": lane,
    "lane, attached by hooks": attached,
}
BARRED = ("lane, with job.iteration()", "lane, attached by hooks")


def measure(stage: Stage) -> list[Row]:
    rows = []
    for name, batch in CASES:
        with stage.tidy():
            rows += _case(stage, stage.trainer(name, batch), f"{name} b{batch}")
    return rows


def _case(stage: Stage, job: Trainer, name: str) -> list[Row]:
    """Ratios within a repetition, in which all ways run one after the other."""
    count = max(3, math.ceil(stage.seconds(SECONDS) / plain(stage, job, 5)))
    alone: list[float] = []
    percent: dict[str, list[float]] = {mode: [] for mode in MODES}
    for repeat in range(REPEATS):
        alone.append(plain(stage, job, count))
        for mode, run in MODES.items():
            percent[mode].append(100 * (run(stage, job, count) / alone[-1] - 1))
        say(f"overhead {name}: {repeat + 1}/{REPEATS}, plain {alone[-1] * 1e3:.2f} ms")
    rows = [Row(f"{name}: plain PyTorch", "ms", [seconds * 1e3 for seconds in alone])]
    for mode, values in percent.items():
        rows.append(Row(f"{name}: {mode}", "% slower", values, BAR if mode in BARRED else None, True))
        say(f"overhead {name}: {mode} {statistics.median(values):+.1f} %")
    return rows
