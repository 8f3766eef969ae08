"""A server that answers requests one at a time, and measures how long each had to wait."""

from __future__ import annotations

import gc
import json
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice, pairwise
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from clients_device import Clock, Responder, memory_gib, read_order
from models import build

KINDS = ("poisson", "uniform", "apollo")


def arrivals(kind: str, rate: float, seconds: float, seed: int, trace: list[float] | None) -> list[int]:
    """Return all arrivals of a window at *rate* requests a second; *trace* (milliseconds) is for apollo."""
    if kind not in KINDS:
        raise ValueError(f"arrivals: expected one of closed, {', '.join(KINDS)} (got {kind!r})")
    if rate <= 0:
        raise ValueError(f"rate: expected more than 0 requests a second (got {rate:g})")
    if kind == "apollo" and not trace:
        raise ValueError("arrivals: apollo needs a trace file (--trace PATH)")
    if kind == "apollo":
        return accumulated(replayed(trace or [], seed), rate, seconds)
    return accumulated({"poisson": poisson, "uniform": uniform}[kind](seed), rate, seconds)


def accumulated(gaps: Iterator[float], rate: float, seconds: float) -> list[int]:
    """Gaps with a mean of one become times with the wanted rate."""
    times = []
    now = 0.0
    for gap in gaps:
        now += gap / rate
        if now >= seconds:
            break
        times.append(int(now * 1e9))
    return times


def poisson(seed: int) -> Iterator[float]:
    chance = Random(seed)
    while True:
        yield chance.expovariate(1.0)


def uniform(seed: int) -> Iterator[float]:
    """Return arrivals that are evenly spaced, from a random moment on."""
    yield Random(seed).random()
    while True:
        yield 1.0


def replayed(trace: list[float], seed: int) -> Iterator[float]:
    """Repeat the gaps of the trace, from a place that the seed picks."""
    gaps = [after - before for before, after in pairwise(trace)]
    mean = fmean(gaps)
    place = Random(seed).randrange(len(gaps))
    return islice(cycle(gap / mean for gap in gaps), place, None)


def read_trace(path: Path, stream: str = "") -> list[float]:
    """Read `{"arrivals_ms": [...]}`, or several lists by name: one of these streams, or all of them
    merged."""
    try:
        arrivals = json.loads(path.read_text(encoding="utf-8"))["arrivals_ms"]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise ValueError(f"trace {path}: expected JSON with arrivals_ms ({problem})") from problem
    streams = arrivals if isinstance(arrivals, dict) else {"": arrivals}
    if stream and stream not in streams:
        raise ValueError(f"trace {path}: expected a stream of {', '.join(streams)} (got {stream!r})")
    times = streams[stream] if stream else [time for part in streams.values() for time in part]
    if len(times) < 2 or max(times) <= min(times):
        raise ValueError(f"trace {path}: expected arrivals at two moments at least")
    return sorted(map(float, times))


WARM_REQUESTS = 3  # before a window, so that its first request finds the GPU awake
CALIBRATING = 60  # requests one after the other, whose median is the service time
GRACE = 1.0  # windows more that requests may queue before the rest of them is given up


@dataclass(frozen=True)
class ServeWindow:
    """Requests of one window. Give a rate (a second), or how much of the time they would be served alone."""

    seconds: float = 1.0
    rate: float = 0.0
    busy: float = 0.0
    arrivals: str = "poisson"
    seed: int = 0
    at: int = 0


@dataclass
class Served:
    """Nanoseconds: from arrival to answer, and from its turn to answer."""

    latencies: list[int] = field(default_factory=list)
    services: list[int] = field(default_factory=list)
    unserved: int = 0


def offer(times: Sequence[int], start: int, give_up: int, respond: Callable[[], Any], clock: Clock) -> Served:
    """Requests come when they come; one that finds the server at work waits, and its wait counts."""
    served = Served()
    for index, moment in enumerate(times):
        arrived = start + moment
        clock.wait_until(arrived)
        begun = clock.now()
        if begun >= give_up:
            left = times[index:]
            served.unserved = len(left)
            served.latencies += [begun - start - moment for moment in left]  # at least so long
            break
        respond()
        ended = clock.now()
        served.latencies.append(ended - arrived)
        served.services.append(ended - begun)
    return served


def closed(start: int, end: int, respond: Callable[[], Any], clock: Clock) -> Served:
    """The next request comes when the one before is answered."""
    served = Served()
    clock.wait_until(start)
    while (begun := clock.now()) < end:
        respond()
        served.services.append(clock.now() - begun)
    served.latencies = served.services
    return served


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that this share of all does not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def spread(nanoseconds: Sequence[int]) -> dict[str, float]:
    if not nanoseconds:
        return {}
    of = {f"p{share}_ms": percentile(nanoseconds, share / 100) / 1e6 for share in (50, 95, 99)}
    return {**of, "mean_ms": statistics.fmean(nanoseconds) / 1e6, "max_ms": max(nanoseconds) / 1e6}


class Server:
    """Knows nothing of sharing: a plain program around a CUDA graph."""

    def __init__(self, options: Any) -> None:
        self._options = options
        self._clock = Clock()
        self._trace = read_trace(Path(options.trace), options.stream) if options.trace else None
        graph = not options.eager
        self._responder = Responder(
            build(options.model), options.batch, options.device, graph, options.priority
        )
        self._service_ns = self._measured()

    @property
    def facts(self) -> dict[str, Any]:
        shown = self._options
        service = {"service_ms": self._service_ns / 1e6, "memory_gib": memory_gib(shown.device)}
        return {"kind": "serve", "model": shown.model, "batch": shown.batch, **service}

    def calibrate(self, words: list[str]) -> dict[str, Any]:
        if words:
            raise ValueError("calibrate: expected nothing more")
        self._service_ns = self._measured()
        return self.facts

    def go(self, words: list[str]) -> dict[str, Any]:
        window = read_order(ServeWindow, words)
        if self._options.closed:
            return self._report(window, 0.0, self._run(window, None))
        rate = self._rate(window)
        times = arrivals(window.arrivals, rate, window.seconds, window.seed, self._trace)
        if not times:
            raise ValueError(f"go: no request arrives in {window.seconds:g} s at {rate:.3g} a second")
        return self._report(window, rate, self._run(window, times))

    def _rate(self, window: ServeWindow) -> float:
        if (window.rate > 0) == (window.busy > 0):
            raise ValueError("go: expected either rate=REQUESTS_A_SECOND or busy=FRACTION")
        return window.rate or window.busy * 1e9 / self._service_ns

    def _run(self, window: ServeWindow, times: list[int] | None) -> Served:
        for _ in range(WARM_REQUESTS):
            self._responder.respond()
        gc.collect()
        gc.disable()  # its pauses would be taken for the GPU's
        try:
            start = max(window.at, self._clock.now())
            length = int(window.seconds * 1e9)
            if times is None:
                return closed(start, start + length, self._responder.respond, self._clock)
            give_up = start + int(length * (1 + GRACE))
            return offer(times, start, give_up, self._responder.respond, self._clock)
        finally:
            gc.enable()

    def _report(self, window: ServeWindow, rate: float, served: Served) -> dict[str, Any]:
        offered = {"rate": rate, "arrivals": "closed" if self._options.closed else window.arrivals}
        return {
            **self.facts,
            **offered,
            "seed": window.seed,
            "seconds": window.seconds,
            "count": len(served.services),
            "unserved": served.unserved,
            **spread(served.latencies),
            "served_mean_ms": statistics.fmean(served.services or [0]) / 1e6,
            "busy": sum(served.services) / 1e9 / window.seconds,
        }

    def _measured(self) -> float:
        """Return what a request takes when nobody else is there: the median of some, one after the other."""
        times = []
        for _ in range(CALIBRATING):
            begun = self._clock.now()
            self._responder.respond()
            times.append(self._clock.now() - begun)
        return statistics.median(times)
