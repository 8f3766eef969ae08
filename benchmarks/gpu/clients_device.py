"""What serving and training need of a device: networks as CUDA graphs, and the times at which work ended.

On the CPU everything is done when its call returns, so that a graph is a call and a mark is the time.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from typing import Any, TextIO, TypeVar

import torch
from models import Workload
from torch import Tensor

T = TypeVar("T")
SPIN_NS = 200_000  # a sleep may wake this much late; the rest is spent looking at the clock
Handler = Callable[[list[str]], dict[str, Any]]


class Clock:
    """The time of this machine; tests hand over another."""

    def now(self) -> int:
        return time.monotonic_ns()

    def wait_until(self, moment: int) -> None:
        left = moment - self.now()
        if left > SPIN_NS:
            time.sleep((left - SPIN_NS) / 1e9)
        while self.now() < moment:
            pass


def read_order(kind: type[T], words: list[str]) -> T:
    """Read `2.0 rate=200` as a window of that kind; the types are those of its fields' defaults."""
    if not words:
        raise ValueError("go: expected the seconds of the window")
    known = {field.name: type(field.default) for field in fields(kind)}  # type: ignore[arg-type]
    values = {"seconds": number(float, "seconds", words[0])}
    for word in words[1:]:
        name, _, value = word.partition("=")
        if name not in known:
            raise ValueError(f"{name}: expected one of {', '.join(known)}")
        values[name] = number(known[name], name, value)
    if values["seconds"] <= 0:
        raise ValueError(f"seconds: expected more than 0 (got {words[0]})")
    return kind(**values)


def number(kind: type, name: str, text: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{name}: expected {kind.__name__} (got {text!r})") from None


def own_stdout() -> TextIO:
    """Return the real stdout, for answers only: whatever else is printed in this process goes to stderr."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers


def obey(orders: TextIO, answers: TextIO, handlers: dict[str, Handler], facts: dict[str, Any]) -> None:
    """Obey until quit, or the end of the input: whoever started us has gone then."""
    print("ready", json.dumps(facts), file=answers, flush=True)
    for line in iter(orders.readline, ""):
        verb, *words = line.split() or [""]
        if verb == "quit":
            return
        print(json.dumps(outcome(handlers, verb, words)), file=answers, flush=True)


def outcome(handlers: dict[str, Handler], verb: str, words: list[str]) -> dict[str, Any]:
    try:
        if verb not in handlers:
            raise ValueError(f"order: expected one of {', '.join([*handlers, 'quit'])} (got {verb!r})")
        return handlers[verb](words)
    except ValueError as problem:
        return {"error": str(problem)}


WARM_UP = 5  # calls before a capture: libraries choose their kernels and allocate their workspaces


class Responder:
    """Answers one request at a time: input from the host, the network, output to the host, wait."""

    def __init__(self, work: Workload, batch: int, device: str, graph: bool, priority: int) -> None:
        self._cuda = device == "cuda"
        self._stream = torch.cuda.Stream(priority=priority) if self._cuda else None
        self._module = work.module(device).eval()
        self._work = work
        self._arrived = [self._pinned(part) for part in work.batch(batch).inputs]
        self._inputs = [part.to(device) for part in self._arrived]
        if self._cuda:
            torch.cuda.synchronize()  # the weights were made on another stream
        with torch.no_grad(), self.on_stream():
            for _ in range(WARM_UP):
                self._output = self._call()
            self._answer = self._pinned(torch.empty_like(self._output, device="cpu"))
        self._launch = self._captured() if graph and self._cuda else self._eager
        self._done = torch.cuda.Event() if self._cuda else None

    def on_stream(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._stream) if self._stream else nullcontext()

    def send(self) -> None:
        """Launch everything of one request, without waiting for it."""
        with torch.no_grad(), self.on_stream():
            for buffer, arrived in zip(self._inputs, self._arrived, strict=True):
                buffer.copy_(arrived, non_blocking=True)
            self._launch()
            self._answer.copy_(self._output, non_blocking=True)
            if self._done:
                self._done.record()

    def wait(self) -> Tensor:
        if self._done:
            self._done.synchronize()
        return self._answer

    def respond(self) -> Tensor:
        self.send()
        return self.wait()

    def _pinned(self, part: Tensor) -> Tensor:
        return part.pin_memory() if self._cuda else part

    def _call(self) -> Tensor:
        return self._work.answer(self._module(*self._inputs))

    def _eager(self) -> None:
        self._output = self._call()

    def _captured(self) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.no_grad(), torch.cuda.graph(graph, stream=self._stream):
            self._output = self._call()
        return graph.replay


class Marks:
    """When pieces of work ended on the device: a program that runs ahead of it cannot know by itself."""

    def __init__(self, device: str) -> None:
        self._cuda = device == "cuda"
        self._events: list[torch.cuda.Event] = []
        self._times: list[int] = []
        if self._cuda:
            torch.cuda.synchronize()
        self.mark()
        if self._cuda:
            self._events[0].synchronize()
        self._base = time.monotonic_ns()  # when the first event passed, give or take a few microseconds

    def mark(self) -> None:
        """Note the moment after the work that the current stream holds so far."""
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._events.append(event)
        else:
            self._times.append(time.monotonic_ns())

    def moments(self) -> list[int]:
        """Return the moments of all marks, in monotonic nanoseconds; it waits for the last."""
        if not self._cuda:
            return self._times
        self._events[-1].synchronize()
        first = self._events[0]
        return [self._base + int(first.elapsed_time(event) * 1e6) for event in self._events]


def memory_gib(device: str) -> float:
    return torch.cuda.max_memory_reserved() / 2**30 if device == "cuda" else 0.0
