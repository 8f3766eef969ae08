"""Sharing a cluster, simulated: CPU and memory of whole runs, each in a process of its own.

The bar for 900 jobs on 256 GPUs is a twentieth of the 205 s that Gavel's simulator took for its finish-time
fair policy with 460 jobs on 128 GPUs (two shared cores, 2026). These runs are repeated, in turns, so that
what else the machine does weighs on all alike. Philly's runs need the trace beside the project, and are left
out where it is not; they take long, and are measured once. `--quick` leaves them out (a minute or two); with
neither, there are those that stand for the others; `--all` has every policy, some of which need very long
where 1,500 jobs contend for 192 GPUs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from _run import PHILLY

sys.path.append(str(Path(__file__).resolve().parents[1]))  # what all benchmarks share

from _measure import Cost, Row, child, main
from astrarium.cluster.policies import cluster_policies

GAVEL_S = 205.0
TIMES = 20
PHILLY_JOBS = 15_264
MINUTE = 60.0
TEN_MINUTES = 600.0
TWO_GIB = 2048.0
CONTENDED = ("tiresias", "srsf")  # leases that rotate, leases that stay
WHOLE = ("themis", "tiresias", "max-min", "drf")

Extent = Literal["quick", "usual", "all"]


class Case(NamedTuple):
    what: str
    kind: str
    gpus: int
    jobs: int
    policy: str
    bar: float  # seconds

    def command(self) -> list[str]:
        here = Path(__file__).with_name("_run.py")
        return [sys.executable, str(here), self.kind, str(self.gpus), str(self.jobs), self.policy]


def repeated() -> list[Case]:
    return [
        Case("900 jobs, 256 GPUs", "shockwave", 256, 900, name, GAVEL_S / TIMES)
        for name in ("themis", "finish-time-fair")
    ]


def once(extent: Extent) -> list[Case]:
    if extent == "quick":
        return []
    if not PHILLY.exists():
        print(f"without {PHILLY} there are no rows of Philly", file=sys.stderr)
        return []
    every = cluster_policies.names()
    contended, whole = (every, every) if extent == "all" else (CONTENDED, WHOLE)
    return [
        *(Case("Philly, 1500 jobs, 192 GPUs", "philly", 192, 1500, name, MINUTE) for name in contended),
        *(
            Case("Philly, all jobs, 2048 GPUs", "philly", 2048, PHILLY_JOBS, name, TEN_MINUTES)
            for name in whole
        ),
    ]


def measure(extent: Extent, repeats: int) -> list[Row]:
    return [*rows(repeated(), repeats), *rows(once(extent), 1)]


def rows(cases: Sequence[Case], repeats: int) -> list[Row]:
    costs: dict[Case, list[Cost]] = {case: [] for case in cases}
    for _ in range(repeats):
        for case in cases:
            costs[case].append(_cost(case))
    return [row for case, own in costs.items() for row in _rows_of(case, own)]


def _cost(case: Case) -> Cost:
    print(f"{case.what}, {case.policy} ...", file=sys.stderr, flush=True)
    cost = child(*case.command())
    if int(cost.output) != case.jobs:
        raise SystemExit(f"{case}: {cost.output} jobs ended")
    return cost


def _rows_of(case: Case, costs: Sequence[Cost]) -> list[Row]:
    label = f"cluster, {case.what}, {case.policy}"
    return [
        Row(f"{label}: CPU", "s", [cost.cpu_s for cost in costs], case.bar, less_is_better=True),
        Row(f"{label}: memory", "MiB", [cost.peak_rss / 2**20 for cost in costs], TWO_GIB, True),
    ]


def extent() -> Extent:
    """Take the extent out of the command line, which then has what all benchmarks have."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--all", action="store_true")
    chosen, sys.argv[1:] = parser.parse_known_args()
    return "quick" if chosen.quick else "all" if chosen.all else "usual"


if __name__ == "__main__":
    main(partial(measure, extent()), repeats=3)
