"""Offer load to a server and say what came of it; the work is done by open_loop.cpp, compiled once."""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "open_loop.cpp"
CACHE = HERE.parents[1] / "build" / "serving"
COMPILER = ("g++", "-std=c++20", "-O2", "-pthread", "-Wall", "-Wextra")
THREAD_BYTES = 1e9  # a second: what one thread of the generator sends with ease

SLO_MS = 25.0
GIVE_UP_S = 5.0  # how long a client waits for an answer


@dataclass(frozen=True)
class Template:
    """One request, sent as it is; `weight` is its share where there are several."""

    path: str
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    weight: float = 1.0

    def raw(self, host: str) -> bytes:
        headers = {"Host": host, "Content-Type": "application/json", "Content-Length": str(len(self.body))}
        head = [f"POST {self.path} HTTP/1.1", *(f"{k}: {v}" for k, v in (headers | self.headers).items())]
        return "\r\n".join([*head, "", ""]).encode() + self.body


@dataclass(frozen=True)
class Percentiles:
    """In milliseconds."""

    mean: float = math.nan
    p50: float = math.nan
    p90: float = math.nan
    p99: float = math.nan
    p999: float = math.nan
    max: float = math.nan


@dataclass(frozen=True)
class Result:
    """All counts are of requests that were due after the warm-up. Only answers with a 2xx status count."""

    rate: float  # asked for, requests/s
    seconds: float
    offered: int
    in_time: int
    late: int
    refused: int  # answered with any other status
    timeouts: int
    network_errors: int
    unsent: int  # more than the limit were outstanding
    codes: dict[str, int]
    latency_ms: Percentiles
    refusal_ms: Percentiles
    window_ms: float
    offered_in: list[int]  # by window, of the instant at which requests were due
    in_time_in: list[int]
    lag_ms: Percentiles  # of the generator behind its own plan
    usable: bool  # whether that lag was small enough for the numbers to speak of the server
    most_outstanding: int
    connects: int
    retries: int  # kept-alive connections that the server had closed
    realtime: bool  # whether the system let it run ahead of everything else
    cpu_s: float  # of the generator
    busiest: float  # of its threads: the share of the time in which it had a core
    wall_s: float

    @property
    def in_time_share(self) -> float:
        return self.in_time / self.offered if self.offered else 0.0

    @property
    def in_time_rate(self) -> float:
        return self.in_time / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Limits:
    """What bounds a run, and what spoils it."""

    give_up_s: float = GIVE_UP_S
    outstanding: int = 4096
    lag_p99_ms: float = 1.0
    lag_max_ms: float = 10.0


USUAL = Limits()


class Records(NamedTuple):
    """What a file of records holds: an entry for each request, warm-up included."""

    due_ns: npt.NDArray[np.int64]  # since the load began
    latency_ns: npt.NDArray[np.int64]
    outcome: npt.NDArray[np.int64]  # the HTTP status; below 0: none came

    def in_time(self, slo_ms: float = SLO_MS) -> npt.NDArray[np.bool_]:
        which: npt.NDArray[np.bool_] = (self.outcome == 200) & (self.latency_ns <= slo_ms * 1e6)
        return which


def read_records(path: Path) -> Records:
    return Records(*np.loadtxt(path, delimiter=",", skiprows=1, usecols=(0, 1, 2), dtype=np.int64, ndmin=2).T)


def offer(
    url: str,
    templates: Sequence[Template],
    rate: float,
    seconds: float,
    slo_ms: float = SLO_MS,
    seed: int = 1,
    warmup: float = 1.0,
    window_ms: float = 1000.0,
    records: Path | None = None,
    limits: Limits = USUAL,
) -> Result:
    """Poisson arrivals at *rate* for *seconds* after a warm-up; *records* receives one line per request."""
    arrivals = ["--rate", repr(rate), "--seconds", repr(seconds), "--seed", str(seed)]
    shape = ["--slo-ms", repr(slo_ms), "--warmup", repr(warmup), "--window-ms", repr(window_ms)]
    longest = warmup + seconds + limits.give_up_s
    return _run(url, templates, [*arrivals, *shape], rate, longest, records, limits)


def offer_arrivals(
    url: str,
    templates: Sequence[Template],
    arrivals_ns: Sequence[int],
    kinds: Sequence[int] | None = None,
    slo_ms: float = SLO_MS,
    warmup: float = 0.0,
    window_ms: float = 1000.0,
    records: Path | None = None,
    limits: Limits = USUAL,
) -> Result:
    """Requests due at these instants; `kinds[i]` says which template the i-th is (the first unless given)."""
    last = arrivals_ns[-1] / 1e9
    with tempfile.NamedTemporaryFile("w", suffix=".arrivals") as file:
        for i, at in enumerate(arrivals_ns):
            file.write(f"{at} {kinds[i] if kinds else 0}\n")
        file.flush()
        shape = ["--slo-ms", repr(slo_ms), "--warmup", repr(warmup), "--window-ms", repr(window_ms)]
        options = ["--arrivals", file.name, *shape]
        rate = len(arrivals_ns) / last
        return _run(url, templates, options, rate, last + limits.give_up_s, records, limits)


def _run(
    url: str,
    templates: Sequence[Template],
    options: list[str],
    rate: float,
    longest: float,
    records: Path | None,
    limits: Limits,
) -> Result:
    address = urlsplit(url)
    bounds = ["--timeout-s", repr(limits.give_up_s), "--outstanding", str(limits.outstanding)]
    lags = ["--lag-p99-ms", repr(limits.lag_p99_ms), "--lag-max-ms", repr(limits.lag_max_ms)]
    command = [str(generator()), "--host", str(address.hostname), "--port", str(address.port)]
    command += [*options, *bounds, *lags, "--threads", str(threads(rate, templates))]
    if records:
        command += ["--records", str(records)]
    with tempfile.TemporaryDirectory() as folder:
        for i, template in enumerate(templates):
            path = Path(folder) / f"{i}.request"
            path.write_bytes(template.raw(address.netloc))
            command += ["--request", str(path), "--weight", repr(template.weight)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=longest + 30)
    return _result(rate, json.loads(done.stdout))


def threads(rate: float, templates: Sequence[Template]) -> int:
    """How many threads send these requests in time; two thirds of the cores are the server's."""
    weights = [template.weight for template in templates]
    size = float(np.average([len(template.body) for template in templates], weights=weights))
    return max(1, min(math.ceil(rate * size / THREAD_BYTES), (os.cpu_count() or 1) // 3))


def _result(rate: float, facts: dict[str, object]) -> Result:
    for name in ("latency_ms", "refusal_ms", "lag_ms"):
        facts[name] = Percentiles(**(facts[name] or {}))  # type: ignore[arg-type]
    return Result(rate=rate, **facts)  # type: ignore[arg-type]


def generator(source: Path = SOURCE) -> Path:
    """Return the compiled generator of this source; another source makes another file."""
    text = source.read_bytes() + " ".join(COMPILER).encode()
    binary = CACHE / f"{source.stem}-{hashlib.sha256(text).hexdigest()[:12]}"
    if not binary.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        unfinished = binary.with_suffix(f".{os.getpid()}")
        print("compiling the load generator ...", file=sys.stderr, flush=True)
        subprocess.run([*COMPILER, "-o", str(unfinished), str(source)], check=True)
        unfinished.rename(binary)
    return binary
