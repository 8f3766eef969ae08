"""Many models live on one GPU: what a request takes alone, beside 41 idle models, and under load for all."""

from __future__ import annotations

import random
import statistics
import threading
import time
from functools import partial
from typing import Any

import torch
from models import build

from _measure import Row
from lanes_parts.stage import Stage, say, together

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
        model.alone = statistics.median(_latencies(model, stage.count(ALONE)))
    mean = statistics.mean(model.alone for model in models)
    say(f"inference: a request alone takes {mean * 1e3:.2f} ms on the mean")
    rows = [
        Row(f"{len(models)} models: a request alone, plain PyTorch", "ms", [m.alone * 1e3 for m in models])
    ]
    for policy in POLICIES:
        rows += _resident(stage, policy, models)
    return rows


def _latencies(model: Model, count: int) -> list[float]:
    model.ask()
    seconds = []
    for _ in range(count):
        began = time.perf_counter()
        model.ask()
        seconds.append(time.perf_counter() - began)
    return seconds


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
            idle = statistics.median(_latencies(model, stage.count(IDLE)))
            if number + 1 < len(models):
                order[number + 1].set()
            if baton.wait() == 0:
                start.append(time.perf_counter() + 0.1)
            baton.wait()
            return idle, _under_load(stage, model, number, len(models), start[0])

    times = together([partial(serve, number) for number in range(len(models))])
    return _rows(policy, models, times)


def _under_load(stage: Stage, model: Model, number: int, count: int, start: float) -> list[float]:
    """Return times from when a request came, whether or not the model was still busy with the one before
    it."""
    chance = random.Random(number)
    at = 0.0
    latencies = list[float]()
    rate = BUSY / count / model.alone
    while True:
        at += chance.expovariate(rate)
        if at > stage.seconds(SECONDS):
            return latencies
        time.sleep(max(0.0, start + at - time.perf_counter()))
        model.ask()
        latencies.append(time.perf_counter() - start - at)


def _rows(policy: str, models: list[Model], times_by_model: list[tuple[float, list[float]]]) -> list[Row]:
    pairs = list(zip(models, times_by_model, strict=True))
    idle = [1e3 * (mine - model.alone) for model, (mine, _) in pairs]
    means = [1e3 * (statistics.mean(times) - model.alone) for model, (_, times) in pairs if times]
    every = [1e3 * (latency - model.alone) for model, (_, times) in pairs for latency in times]
    p99: dict[str, Any] = {"p99": sorted(every)[int(0.99 * len(every))] if every else 0.0}
    say(
        f"inference {policy}: added {statistics.median(idle):.2f} ms beside idle models, "
        f"{statistics.median(means or [0.0]):.2f} ms under load, p99 {p99['p99']:.2f} ms, "
        f"{len(every)} requests"
    )
    what = f"{len(models)} models, {policy}"
    return [
        Row(f"{what}: added latency, the others idle", "ms", idle, BAR, True),
        Row(f"{what}: added mean latency, GPU {BUSY:.0%} busy for all", "ms", means or [0.0], BAR, True),
        Row(f"{what}: added latency at p99, GPU {BUSY:.0%} busy for all", "ms", [p99["p99"]]),
    ]
