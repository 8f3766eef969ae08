"""Sharing a cluster, simulated: CPU and memory of whole runs, each in a process of its own.

The bar for 900 jobs on 256 GPUs is a twentieth of the 205 s that Gavel's simulator took for its finish-time
fair policy with 460 jobs on 128 GPUs (two shared cores, 2026). Philly's rows need the trace beside the
project, and are left out where it is not; they take long, and are measured once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

from _cluster_run import PHILLY
from _measure import Row, child, main
from astrarium.cluster.registry import cluster_policies

GAVEL_S, TIMES = 205.0, 20
PHILLY_JOBS, TEN_MINUTES, TWO_GIB = 15_264, 600.0, 2048.0
LEASED = ("tiresias", "srsf", "srtf", "gandiva", "optimus", "slaq", "drf")


class Case(NamedTuple):
    what: str
    kind: str
    gpus: int
    jobs: int
    policy: str
    bar: float | None = None  # seconds
    once: bool = True

    def command(self) -> list[str]:
        here = Path(__file__).with_name("_cluster_run.py")
        return [sys.executable, str(here), self.kind, str(self.gpus), str(self.jobs), self.policy]


def cases() -> list[Case]:
    found = [
        Case("900 jobs, 256 GPUs", "shockwave", 256, 900, "themis", GAVEL_S / TIMES, once=False),
        Case("900 jobs, 256 GPUs", "shockwave", 256, 900, "finish-time-fair", GAVEL_S / TIMES, once=False),
    ]
    if not PHILLY.exists():
        print(f"without {PHILLY} there are no rows of Philly", file=sys.stderr)
        return found
    contended = [Case("Philly, 1500 jobs, 192 GPUs", "philly", 192, 1500, name) for name in LEASED]
    whole = [
        Case("Philly, all jobs, 2048 GPUs", "philly", 2048, PHILLY_JOBS, name, TEN_MINUTES)
        for name in cluster_policies.names()
    ]
    return found + contended + whole


def measure(repeats: int) -> list[Row]:
    return [row for case in cases() for row in rows(case, 1 if case.once else repeats)]


def rows(case: Case, repeats: int) -> list[Row]:
    costs = [child(*case.command()) for _ in range(repeats)]
    for cost in costs:
        if int(cost.output) != case.jobs:
            raise SystemExit(f"{case}: {cost.output} jobs ended")
    label = f"cluster, {case.what}, {case.policy}"
    return [
        Row(f"{label}: CPU", "s", [cost.cpu_s for cost in costs], case.bar, less_is_better=True),
        Row(f"{label}: memory", "MiB", [cost.peak_rss / 2**20 for cost in costs], TWO_GIB, True),
    ]


if __name__ == "__main__":
    main(measure, repeats=3)
