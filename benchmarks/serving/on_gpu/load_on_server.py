"""What one server does at a rate: latency, CPU time, and how busy the GPU is."""

from __future__ import annotations

import math
import os
import re
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

from _shared import say
from load import Result, offer
from peers.peer import Peer, Running, Settings, until_quiet
from search import Plan, goodput, usable

from on_gpu.scenario import simulated
from on_gpu.servers import OnGpu

QUIET = 200.0  # requests/s
SHARES = (0.5, 0.8, 1.0)  # of the goodput: where simulated and live are held against each other
TIMES = (2.0, 3.0)  # of the goodput: overload


def served(peer: Peer, guess: float, plan: Plan, settings: Settings | None = None) -> dict[str, Any]:
    """Measure one server: quiet, at its goodput, below it and beyond."""
    with peer.running(1, settings or peer.settings[0]) as server:
        offer(server.url, server.templates, 500.0, 2.0, plan.slo_ms)  # everything has been touched once
        quiet = usable(server, QUIET, plan, 5)
        say(f"{peer.name} {summary(quiet)}")
        reach = goodput(server, guess, plan)
        say(f"{peer.name} goodput {reach.rates}")
        runs = {share: once(server, share * reach.median, plan) for share in (*SHARES, *TIMES)}
        counted = counters(server) if isinstance(peer, OnGpu) else {}
    return {
        "quiet": spread(quiet),
        "goodput": reach.rates,
        "runs": runs,
        "kept": {share: runs[share]["in_time_rate"] / reach.median for share in TIMES},
        "simulated": {
            share: simulated(peer.scenario, share * reach.median)
            for share in SHARES
            if isinstance(peer, OnGpu)
        },
        "versions": peer.versions(),
        **counted,
    }


def once(server: Running, rate: float, plan: Plan) -> dict[str, float]:
    """One rate, with the CPU time of a request in all of the server's processes, and how busy the GPU was."""
    until_quiet(server)
    before = server.tree.cpu_s()
    lost = stolen()
    with GpuWatch() as watch:
        run = offer(server.url, server.templates, rate, plan.seconds, plan.slo_ms, 7, plan.warmup)
    cpu = 1e6 * (server.tree.cpu_s() - before) / (run.rate * (plan.seconds + plan.warmup))
    say(f"{summary(run)}; CPU {cpu:.0f} us, GPU busy {watch.busy:.2f}, stolen {stolen() - lost:.2f} s")
    facts = {"in_time_rate": run.in_time_rate, "cpu_us": cpu, "gpu_busy": watch.busy}
    return {**spread(run), **facts}


class GpuWatch:
    """Asks the driver ten times a second for the share of time in which a kernel ran, without the ends."""

    def __enter__(self) -> GpuWatch:
        query = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "100"]
        self._asking = subprocess.Popen(query, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._asking.terminate()
        output, _ = self._asking.communicate()
        shares = [int(text) / 100 for text in output.split() if text.isdigit()]
        middle = shares[len(shares) // 4 : -max(1, len(shares) // 8)]
        self.busy = sum(middle) / len(middle) if middle else math.nan


def stolen() -> float:
    """Seconds of CPU time that this machine wanted and its host did not give it, so far."""
    return int(Path("/proc/stat").read_text().split()[8]) / os.sysconf("SC_CLK_TCK")


def summary(run: Result) -> str:
    took = run.latency_ms
    lag = run.lag_ms
    return (
        f"{run.rate:.0f}/s: {run.in_time_share:.4f} in time, p50 {took.p50:.2f} p90 {took.p90:.2f} "
        f"p99 {took.p99:.2f} max {took.max:.1f} ms, refused {run.refused}, late {run.late}, "
        f"lag p99 {lag.p99:.2f} max {lag.max:.1f} ms, generator busy {run.busiest:.2f}"
    )


def spread(run: Result) -> dict[str, float]:
    took = run.latency_ms
    return {"in_time": run.in_time_share, "p50": took.p50, "p90": took.p90, "p99": took.p99, "max": took.max}


def counters(server: Running) -> dict[str, Any]:
    """What the server itself says of its ways, its garbage collector, and what its path carries."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    labelled = re.compile(r'astrarium_(long_way|collections)_total\{\w+="(.*)"\} (.*)')
    matches = [match for text in lines if (match := labelled.match(text))]
    counted = {
        name: {match[2]: float(match[3]) for match in matches if match[1] == name}
        for name in ("long_way", "collections")
    }
    [carries] = [text.split()[-1] for text in lines if text.startswith("astrarium_path_carries ")]
    return {**counted, "carries": float(carries)}
