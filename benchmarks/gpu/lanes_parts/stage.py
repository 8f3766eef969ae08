"""Where the jobs of the lanes benchmark run: a GPU or, to try the script out, the CPU."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import torch
from models import build

from astrarium.device.live.backend import Excess, LaneBackend, Needs, Turn
from astrarium.device.live.torch_backend import TorchGpu, TorchLaneBackend
from astrarium.testing.plain_backend import PlainLaneBackend

T = TypeVar("T")
WARM = 8  # iterations before any are timed: those that are measured, and the first in a lane
PRETENDED = Needs(1 << 20, 1 << 20, 1_000_000)


class CpuEvent:
    """A host clock with the methods of a CUDA event with timing."""

    at = 0

    def record(self) -> None:
        self.at = time.perf_counter_ns()

    def elapsed_time(self, later: CpuEvent) -> float:
        return (later.at - self.at) / 1e6


class Mark(NamedTuple):
    """A turn began or ended: on the host's clock, and in the GPU's own order of work."""

    job: int
    begins: bool
    at: int
    event: Any


class Marked:
    """A lane backend that notes when turns begin and end."""

    def __init__(self, backend: LaneBackend, event: Callable[[], Any]) -> None:
        self._backend = backend
        self._event = event
        self.marks: list[Mark] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def begin(self, turn: Turn) -> None:
        self._backend.begin(turn)
        at = time.perf_counter_ns()
        event = self._event()
        event.record()
        self.marks.append(Mark(turn.job, True, at, event))

    def end(self, turn: Turn, error: BaseException | None) -> Excess | None:
        event = self._event()
        event.record()
        excess = self._backend.end(turn, error)
        self.marks.append(Mark(turn.job, False, time.perf_counter_ns(), event))
        return excess


class Stage:
    """*pretend*: tiny networks on the CPU, and a hundredth of the time."""

    def __init__(self, pretend: bool) -> None:
        self.pretend = pretend
        self.device = "cpu" if pretend else "cuda"

    def seconds(self, real: float) -> float:
        return real / 100 if self.pretend else real

    def count(self, real: int) -> int:
        return max(2, real // 20) if self.pretend else real

    def sync(self) -> None:
        if not self.pretend:
            torch.cuda.synchronize()

    def backend(self) -> LaneBackend:
        return PlainLaneBackend(1 << 40, PRETENDED) if self.pretend else TorchLaneBackend()

    def gpu(self, policy: str) -> TorchGpu:
        return TorchGpu(policy, self.backend())

    def marked(self, policy: str) -> tuple[TorchGpu, Marked]:
        backend = Marked(self.backend(), self.event)
        return TorchGpu(policy, backend), backend  # type: ignore[arg-type]

    def event(self) -> Any:
        return CpuEvent() if self.pretend else torch.cuda.Event(enable_timing=True)

    def trainer(self, name: str, batch: int) -> Trainer:
        return Trainer("tiny", 2, self.device) if self.pretend else Trainer(name, batch, self.device)

    @contextmanager
    def tidy(self) -> Iterator[None]:
        """Give the memory that a part has used back at its end, before the next one."""
        yield
        if not self.pretend:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()


class Trainer:
    """A plain loop's body: nothing of ours is in it."""

    def __init__(self, name: str, batch: int, device: str) -> None:
        self.name = f"{name} b{batch}"
        work = build(name)
        self.model = work.module(device).train()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        self._loss = work.loss
        self._batch = work.batch(batch, device)
        self._device = device

    def step(self) -> None:
        self.optimizer.zero_grad()
        with torch.autocast(self._device, torch.bfloat16):
            loss = self._loss(self.model(*self._batch.inputs), self._batch.targets)
        loss.backward()
        self.optimizer.step()


def in_thread(work: Callable[[], T]) -> T:
    return together([work])[0]


def together(work: list[Callable[[], T]]) -> list[T]:
    """Run each in a thread of its own; the first error is raised when all have ended."""
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            results[number] = work[number]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[number] for number in range(len(work))]


def timed(stage: Stage, step: Callable[[], None], iterations: int) -> float:
    """Return the seconds of each iteration, after some to warm up."""
    for _ in range(WARM):
        step()
    stage.sync()
    began = time.perf_counter()
    for _ in range(iterations):
        step()
    stage.sync()
    return (time.perf_counter() - began) / iterations


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def plain_time(stage: Stage, job: Trainer) -> float:
    """Return the seconds of an iteration in a plain loop."""
    return timed(stage, job.step, stage.count(40))
