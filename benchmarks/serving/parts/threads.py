"""Where the CPU time of a request goes, by thread: a model that takes no time, 64 clients that wait for
answers.

    python benchmarks/serving/parts/threads.py [--seconds 4]

For 1 and for 64 models: microseconds of each thread in its own code and in the kernel, and how often it was
switched away from, for each request. Takes half a minute.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))

from load import offer
from path import ALL_OUT, BEYOND, NO_COST, SLO_MS, answered
from peers import Ours, Running, Settings
from processes import TICKS

LEAST_S = 0.05  # of CPU time: threads that had less are left out


class Used(NamedTuple):
    user: float  # seconds
    system: float
    switches: int


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--seconds", type=float, default=4.0, help="of each run, 4 unless given")
    seconds = options.parse_args().seconds
    print("| models | thread | own code, us | kernel, us | switches |\n| --- | --- | --- | --- | --- |")
    for models in (1, 64):
        with Ours(models=models, **NO_COST).running(1, Settings()) as server:
            offer(server.url, server.templates, 500.0, 2.0, SLO_MS)  # everything has been touched once
            show(models, server, seconds)


def show(models: int, server: Running, seconds: float) -> None:
    before = used(server)
    run = offer(server.url, server.templates, BEYOND, seconds, SLO_MS, warmup=0.0, limits=ALL_OUT)
    nothing = Used(0.0, 0.0, 0)
    count = answered(run)
    for thread, after in used(server).items():
        user, system, switches = (a - b for a, b in zip(after, before.get(thread, nothing), strict=True))
        if user + system > LEAST_S:
            shown = f"{1e6 * user / count:.1f} | {1e6 * system / count:.1f} | {switches / count:.2f}"
            print(f"| {models} | {thread} | {shown} |", flush=True)


def used(server: Running) -> dict[str, Used]:
    """What each thread has had, by the name of its process and its number there."""
    by_thread = {}
    for process in server.tree.stats():
        folder = Path(f"/proc/{process.pid}")
        kind = "worker" if b"live.worker" in (folder / "cmdline").read_bytes() else "server"
        for number, thread in enumerate(sorted((folder / "task").iterdir(), key=lambda task: int(task.name))):
            fields = (thread / "stat").read_text().rpartition(")")[2].split()
            lines = (thread / "status").read_text().splitlines()
            switches = sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)
            by_thread[f"{kind} {number}"] = Used(int(fields[11]) / TICKS, int(fields[12]) / TICKS, switches)
    return by_thread


if __name__ == "__main__":
    main()
