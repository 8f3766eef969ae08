"""Small trials on one GPU: how much sooner all are done side by side than one after another."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from _measure import Row
from astrarium.device.live.backend import Needs
from astrarium.device.live.torch_backend import TorchGpu
from lanes_parts.stage import Stage, say, together

TRIALS = 16
TRIAL_BATCH = 64
TRIAL_REPEATS = 3
PACK_BAR = 2.0
EAGER_ITERATIONS = 100
GRAPH_ITERATIONS = 500


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
    """Measure the time until all trials are done, FIFO over PACK."""
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
