"""Programs that run as fast as they can, iteration after iteration: training, and offline inference."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from clients_device import Clock, Marks, Responder, memory_gib, read_order
from clients_serve import spread
from models import Workload, build

WARM_ITERATIONS = 5


@dataclass(frozen=True)
class LoopWindow:
    """Iterations are counted in the window; the loop also runs `lead` seconds before and `tail` after it."""

    seconds: float = 1.0
    lead: float = 0.0
    tail: float = 0.0
    at: int = 0


def progress(ends: list[int], moment: int) -> float:
    """Return the iterations done by then, the one under way in part. `ends[0]` is when the first began."""
    done = sum(end <= moment for end in ends) - 1
    if done < 0 or done == len(ends) - 1:
        return max(0.0, done)
    return done + (moment - ends[done]) / (ends[done + 1] - ends[done])


def counted(ends: list[int], start: int, stop: int) -> dict[str, Any]:
    """Return what was done from start to stop, and how long each iteration took that ended there."""
    inside = [now - before for before, now in pairwise(ends) if start < now <= stop]
    iterations = progress(ends, stop) - progress(ends, start)
    rate = iterations * 1e9 / (stop - start)
    return {"iterations": iterations, "per_second": rate, "count": len(inside), **spread(inside)}


class Training:
    """A plain training step: forward, backward, optimizer. Its result is the loss."""

    def __init__(self, work: Workload, options: Any) -> None:
        self._work = work
        self._device = options.device
        self._module = work.module(options.device).train()
        make = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[options.optimizer]
        self._optimizer = make(self._module.parameters(), lr=1e-4)
        inputs, targets = work.batch(options.batch)
        self._batch = [place(part, options.device, options.feed) for part in (*inputs, targets)]

    def on_stream(self) -> AbstractContextManager[object]:
        return nullcontext()  # training uses the default stream, as nearly all programs do

    def step(self) -> torch.Tensor:
        *inputs, targets = (part.to(self._device, non_blocking=True) for part in self._batch)
        self._optimizer.zero_grad(set_to_none=True)
        loss = self._work.loss(self._module(*inputs), targets)
        loss.backward()
        self._optimizer.step()
        return loss

    def look(self, loss: torch.Tensor) -> None:
        loss.item()


def place(part: torch.Tensor, device: str, feed: str) -> torch.Tensor:
    """Return where the data waits: on the GPU, or in pinned memory of the host to be copied in every
    iteration."""
    if feed == "device":
        return part.to(device)
    return part.pin_memory() if device == "cuda" else part


class Inference:
    """One batch through a network, as a CUDA graph or not."""

    def __init__(self, work: Workload, options: Any) -> None:
        self._responder = Responder(work, options.batch, options.device, options.graph, options.priority)

    def on_stream(self) -> AbstractContextManager[object]:
        return self._responder.on_stream()

    def step(self) -> None:
        self._responder.send()

    def look(self, _: None) -> None:
        self._responder.wait()


class Loop:
    """Runs ahead of its GPU until it looks at a result, as such programs do."""

    def __init__(self, body: type[Training] | type[Inference], options: Any) -> None:
        self._options = options
        self._clock = Clock()
        self._body: Any = body(build(options.model), options)
        for _ in range(WARM_ITERATIONS):
            self._body.look(self._body.step())

    @property
    def facts(self) -> dict[str, Any]:
        shown = self._options
        model_facts = {"kind": shown.kind, "model": shown.model, "batch": shown.batch}
        return {**model_facts, "memory_gib": memory_gib(shown.device)}

    def go(self, words: list[str]) -> dict[str, Any]:
        window = read_order(LoopWindow, words)
        now = self._clock.now()
        start = max(window.at, now + int(window.lead * 1e9))
        stop = start + int(window.seconds * 1e9)
        self._clock.wait_until(start - int(window.lead * 1e9))
        ends = self._iterate(stop + int(window.tail * 1e9))
        return {**self.facts, "seconds": window.seconds, **counted(ends, start, stop)}

    def _iterate(self, until: int) -> list[int]:
        with self._body.on_stream():
            marks = Marks(self._options.device)
            done = 0
            while done == 0 or self._clock.now() < until:
                result = self._body.step()
                marks.mark()
                done += 1
                if done % self._options.look_every == 0:
                    self._body.look(result)
            return marks.moments()
