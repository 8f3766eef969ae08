"""Many models live on one GPU: what a request takes alone, beside 41 idle models, and under load for all."""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from lanes_stage import Stage, Trainer, plain_time, say, together
from models import build
from torch import nn

from _measure import Row
from astrarium.core.quantities import SECOND
from astrarium.device.live.backend import Needs
from astrarium.device.live.torch_backend import TorchGpu
from astrarium.device.salus_trace import trace

KINDS = (("resnet50", 32), ("resnet18", 64), ("mobilenet_v2", 64), ("bert_base", 8), ("transformer", 16))
# Salus's jobs of 1, 5 and 10 minutes last 0.6, 3 and 6 seconds
JOBS = 20
FASTER = 100
TRACE_SEEDS = (1,)
TRACE_BAR = 2.0
TRIALS = 16
TRIAL_BATCH = 64
TRIAL_REPEATS = 3
PACK_BAR = 2.0
EAGER_ITERATIONS = 100
GRAPH_ITERATIONS = 500


@dataclass
class Arrival:
    at: float
    job: Trainer
    iterations: int


def shortest_first(stage: Stage) -> list[Row]:
    """The mean time from arrival to completion, FIFO over SRTF, of the same jobs."""
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
    return rows + [Row(f"{JOBS} jobs: mean completion, {name}", "s", found) for name, found in means.items()]


def _arrivals(stage: Stage, jobs: list[Trainer], times: dict[str, float], seed: int) -> list[Arrival]:
    """Lengths and arrivals as in the simulated trace of Salus's Table 2.1, faster; our own networks."""
    found = []
    for job, drawn in zip(jobs, trace(JOBS, seed), strict=True):
        length = stage.seconds(drawn.iterations * drawn.workload.iteration / SECOND / FASTER)
        at = stage.seconds(drawn.arrival / SECOND / FASTER)
        found.append(Arrival(at, job, max(4, round(length / times[job.name]))))
    return found


def _mean_completion(stage: Stage, policy: str, arrivals: list[Arrival]) -> float:
    gpu = stage.gpu(policy)
    began = time.perf_counter()

    def train(each: Arrival) -> float:
        time.sleep(max(0.0, began + each.at - time.perf_counter()))
        job = each.job
        with gpu.attached(job.name, job.model, job.optimizer, iterations=each.iterations):
            for _ in range(each.iterations):
                job.step()
        return time.perf_counter() - began - each.at

    taken = together([partial(train, each) for each in arrivals])
    return sum(taken) / len(taken)


# small trials


class SmallNet(nn.Sequential):
    """A convolutional network for pictures of 32 x 32, as one tries by the dozen."""

    def __init__(self) -> None:
        layers: list[nn.Module] = []
        for before, after in ((3, 32), (32, 64), (64, 128)):
            layers += [
                nn.Conv2d(before, after, 3, padding=1),
                nn.BatchNorm2d(after),
                nn.ReLU(),
                nn.MaxPool2d(2),
            ]
        super().__init__(*layers, nn.Flatten(), nn.Linear(128 * 16, 10))


class Trial:
    """*graph*: the whole step is one launch."""

    def __init__(self, number: int, device: str, graph: bool) -> None:
        self.model = SmallNet().to(device)
        size = TRIAL_BATCH if device == "cuda" else 2
        rate = 0.1 / (number + 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=rate, momentum=0.9)
        self._images = torch.randn(size, 3, 32, 32, device=device)
        self._labels = torch.randint(10, (size,), device=device)
        self.step: Callable[[], None] = self._captured() if graph and device == "cuda" else self._eager

    def _eager(self) -> None:
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(self._images), self._labels).backward()
        self.optimizer.step()

    def _captured(self) -> Callable[[], None]:
        """Before any job runs: captures want the device for themselves. Each on a stream of its own: those of
        one stream share a workspace of cuBLAS, and wait for each other for ever when they run at once."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._eager()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            self._eager()
        return graph.replay


def packed(stage: Stage) -> list[Row]:
    """The time until all trials are done, FIFO over PACK."""
    rows = []
    for kind, count in (("eager", EAGER_ITERATIONS), ("CUDA graphs", GRAPH_ITERATIONS)):
        with stage.tidy():
            trials = [Trial(number, stage.device, kind != "eager") for number in range(stage.count(TRIALS))]
            ratios = []
            for repeat in range(TRIAL_REPEATS):
                spans = {}
                for policy in ("fifo", "pack"):
                    spans[policy] = _makespan(stage.gpu(policy), trials, stage.count(count))
                    say(f"PACK {kind}: {repeat + 1}/{TRIAL_REPEATS}, {policy} {spans[policy]:.2f} s")
                ratios.append(spans["fifo"] / spans["pack"])
            rows.append(
                Row(f"{TRIALS} small trials, {kind}: makespan, FIFO over PACK", "x", ratios, PACK_BAR)
            )
    return rows


def _makespan(gpu: TorchGpu, trials: list[Trial], iterations: int) -> float:
    """What each needs is given: captured steps allocate nothing, and the others are all alike."""
    needs = Needs(64 << 20, 256 << 20, 2_000_000)

    def tune(number: int) -> None:
        with gpu.job(f"trial {number}", needs, iterations, demand=0.1) as job:
            for _ in range(iterations):
                with job.iteration():
                    trials[number].step()

    began = time.perf_counter()
    together([partial(tune, number) for number in range(len(trials))])
    return time.perf_counter() - began


MODELS = (
    "resnet18", "resnet50", "resnet101", "resnet152", "mobilenet_v2", "vgg11", "vgg16",
    "vgg19", "alexnet", "googlenet", "densenet121", "squeezenet", "bert_base", "transformer",
)  # fmt: skip
INSTANCES = 3
BATCH = 1
ALONE = 30
IDLE = 20
SECONDS = 8.0
BUSY = 0.3
BAR = 5.0  # ms: what Salus reports
POLICIES = ("pack", "fair")


class Model:
    def __init__(self, stage: Stage, name: str, instance: int) -> None:
        work = build("tiny" if stage.pretend else name)
        self.name = f"{name} {instance}"
        self.module = work.module(stage.device, seed=instance).eval()
        self._inputs = work.batch(BATCH, stage.device).inputs
        self._answer = work.answer
        self.alone = 0.0  # seconds

    def ask(self) -> None:
        """Ends when the answer is on the host."""
        with torch.no_grad():
            self._answer(self.module(*self._inputs)).cpu()


def many_models(stage: Stage) -> list[Row]:
    models = [Model(stage, name, number) for name in MODELS for number in range(INSTANCES)]
    say(f"inference: {len(models)} models are made")
    for model in models:
        model.alone = statistics.median(_asked(model, stage.count(ALONE)))
    mean = statistics.mean(model.alone for model in models)
    say(f"inference: a request alone takes {mean * 1e3:.2f} ms on the mean")
    rows = [
        Row(f"{len(models)} models: a request alone, plain PyTorch", "ms", [m.alone * 1e3 for m in models])
    ]
    for policy in POLICIES:
        rows += _resident(stage, policy, models)
    return rows


def _asked(model: Model, count: int) -> list[float]:
    model.ask()
    found = []
    for _ in range(count):
        began = time.perf_counter()
        model.ask()
        found.append(time.perf_counter() - began)
    return found


def _resident(stage: Stage, policy: str, models: list[Model]) -> list[Row]:
    """First each in turn while the others are idle, then requests for all of them at random times."""
    gpu = stage.gpu(policy)
    baton = threading.Barrier(len(models))
    order = [threading.Event() for _ in models]
    order[0].set()
    start: list[float] = []

    def serve(number: int) -> tuple[float, list[float]]:
        model = models[number]
        with gpu.attached(model.name, model.module):
            for _ in range(5):
                model.ask()
            baton.wait()
            order[number].wait()
            idle = statistics.median(_asked(model, stage.count(IDLE)))
            if number + 1 < len(models):
                order[number + 1].set()
            if baton.wait() == 0:
                start.append(time.perf_counter() + 0.1)
            baton.wait()
            return idle, _under_load(stage, model, number, len(models), start[0])

    found = together([partial(serve, number) for number in range(len(models))])
    return _rows(policy, models, found)


def _under_load(stage: Stage, model: Model, number: int, count: int, start: float) -> list[float]:
    """Times from when a request came, whether or not the model was still busy with the one before it."""
    chance = random.Random(number)
    at = 0.0
    found = list[float]()
    rate = BUSY / count / model.alone
    while True:
        at += chance.expovariate(rate)
        if at > stage.seconds(SECONDS):
            return found
        time.sleep(max(0.0, start + at - time.perf_counter()))
        model.ask()
        found.append(time.perf_counter() - start - at)


def _rows(policy: str, models: list[Model], found: list[tuple[float, list[float]]]) -> list[Row]:
    pairs = list(zip(models, found, strict=True))
    idle = [1e3 * (mine - model.alone) for model, (mine, _) in pairs]
    means = [1e3 * (statistics.mean(times) - model.alone) for model, (_, times) in pairs if times]
    every = [1e3 * (each - model.alone) for model, (_, times) in pairs for each in times]
    asked: dict[str, Any] = {"p99": sorted(every)[int(0.99 * len(every))] if every else 0.0}
    say(
        f"inference {policy}: added {statistics.median(idle):.2f} ms beside idle models, "
        f"{statistics.median(means or [0.0]):.2f} ms under load, p99 {asked['p99']:.2f} ms, "
        f"{len(every)} requests"
    )
    what = f"{len(models)} models, {policy}"
    return [
        Row(f"{what}: added latency, the others idle", "ms", idle, BAR, True),
        Row(f"{what}: added mean latency, GPU {BUSY:.0%} busy for all", "ms", means or [0.0], BAR, True),
        Row(f"{what}: added latency at p99, GPU {BUSY:.0%} busy for all", "ms", [asked["p99"]]),
    ]
