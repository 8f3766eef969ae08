"""When requests arrive: drawn, or read from a trace and scaled to the rate that is wanted.

Times are nanoseconds from the start of a window, in order. The same seed gives the same times.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import cycle, islice, pairwise
from pathlib import Path
from random import Random
from statistics import fmean

KINDS = ("poisson", "uniform", "apollo")


def arrivals(kind: str, rate: float, seconds: float, seed: int, trace: list[float] | None) -> list[int]:
    """All arrivals of a window at *rate* requests a second; *trace* (milliseconds) is for apollo."""
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
    times, now = [], 0.0
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
    """Evenly spaced, from a random moment on."""
    yield Random(seed).random()
    while True:
        yield 1.0


def replayed(trace: list[float], seed: int) -> Iterator[float]:
    """The gaps of the trace, round and round, from a place that the seed picks."""
    gaps = [after - before for before, after in pairwise(trace)]
    mean = fmean(gaps)
    place = Random(seed).randrange(len(gaps))
    return islice(cycle(gap / mean for gap in gaps), place, None)


def read_trace(path: Path, stream: str = "") -> list[float]:
    """`{"arrivals_ms": [...]}`, or several lists by name: one of these streams, or all of them merged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["arrivals_ms"]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise ValueError(f"trace {path}: expected JSON with arrivals_ms ({problem})") from problem
    streams = found if isinstance(found, dict) else {"": found}
    if stream and stream not in streams:
        raise ValueError(f"trace {path}: expected a stream of {', '.join(streams)} (got {stream!r})")
    times = streams[stream] if stream else [time for part in streams.values() for time in part]
    if len(times) < 2 or max(times) <= min(times):
        raise ValueError(f"trace {path}: expected arrivals at two moments at least")
    return sorted(map(float, times))
