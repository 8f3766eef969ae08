"""How a client is told what to do: a line on stdin is an order, a line of JSON on stdout its outcome.

    ready {...}                          when it is warm
    go 2.0 rate=200 seed=1 at=123456     one window of two seconds, which begins at that time (monotonic, ns)
    calibrate                            measure again what a request takes alone
    quit

What cannot be done is answered with {"error": ...}, and the next order is awaited. Time-keeping is shared by
all processes of a machine, so that windows of several clients coincide.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from typing import Any, TextIO, TypeVar

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
    """`2.0 rate=200` as a window of that kind: the defaults of its fields say what types they have."""
    if not words:
        raise ValueError("go: expected the seconds of the window")
    known = {field.name: type(field.default) for field in fields(kind)}  # type: ignore[arg-type]
    given = {"seconds": number(float, "seconds", words[0])}
    for word in words[1:]:
        name, _, value = word.partition("=")
        if name not in known:
            raise ValueError(f"{name}: expected one of {', '.join(known)}")
        given[name] = number(known[name], name, value)
    if given["seconds"] <= 0:
        raise ValueError(f"seconds: expected more than 0 (got {words[0]})")
    return kind(**given)


def number(kind: type, name: str, text: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{name}: expected {kind.__name__} (got {text!r})") from None


def own_stdout() -> TextIO:
    """The real stdout, for answers only: whatever else is printed in this process goes to stderr."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers


def obey(orders: TextIO, answers: TextIO, handlers: dict[str, Handler], facts: dict[str, Any]) -> None:
    """Until quit, or the end of the input: whoever started us has gone then."""
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
