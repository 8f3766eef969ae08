"""Compute or memory bound: what the gate guesses from a kernel's name, against what Nsight Compute counts.

    python benchmarks/gpu/kinds.py --training resnet50:32 --inference bert_base:2

Needs `ncu` and the right to read counters; nothing else of ours does. Orion's rule: a kernel is bound by what
it uses more than 60 % of; below that in both it is unknown. Agreement is counted in kernels and in time.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pair import aligned

from astrarium._gate import kind_of

COMPUTE = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
MEMORY = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
TIME = "gpu__time_duration.sum"
BOUND = 60.0  # per cent: from here on a kernel is bound by it
HEADER = ("workload", "kernels", "bound by what we say", "by the other", "below 60 % in both", "by time")
PATIENCE = 300.0


class Counted(NamedTuple):
    name: str
    compute: float
    memory: float
    time: float

    @property
    def kind(self) -> str:
        if max(self.compute, self.memory) < BOUND:
            return "unknown"
        return "compute" if self.compute > self.memory else "memory"


def run(purpose: str, model: str, batch: int) -> None:
    """Run one iteration, after some that warm up, in the process that is counted."""
    import record
    import torch

    once = record.workload(purpose, model, batch)
    for _ in range(3):
        once()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    once()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def counted(purpose: str, model: str, batch: int) -> list[Counted]:
    ncu = ["ncu", "--csv", "--page", "raw", "--profile-from-start", "off", "--print-kernel-base", "mangled"]
    ncu += ["--metrics", ",".join((COMPUTE, MEMORY, TIME)), "--replay-mode", "kernel"]
    command = [*ncu, sys.executable, __file__, "--run", purpose, model, str(batch)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode:
        sys.exit(f"kinds.py: ncu ended with {done.returncode}\n{done.stdout[-1000:]}{done.stderr[-1000:]}")
    return list(parsed(done.stdout))


def parsed(text: str) -> Iterator[Counted]:
    """The lines of the program itself come before the table, and the units are its first row."""
    lines = text.splitlines()
    begin = next(index for index, line in enumerate(lines) if line.startswith('"ID"'))
    for row in list(csv.DictReader(lines[begin:]))[1:]:
        numbers = (float(row[name].replace(",", "")) for name in (COMPUTE, MEMORY, TIME))
        yield Counted(row["Kernel Name"], *numbers)


def compared(workload: str, kernels: list[Counted]) -> tuple[str, ...]:
    verdicts = Counter[str]()
    by_time = Counter[str]()
    for kernel in kernels:
        verdict = "neither" if kernel.kind == "unknown" else str(kernel.kind == kind_of(kernel.name))
        verdicts[verdict] += 1
        by_time[verdict] += kernel.time  # type: ignore[assignment]
    decided = by_time["True"] + by_time["False"]
    counts = (str(len(kernels)), *(str(verdicts[verdict]) for verdict in ("True", "False", "neither")))
    return (workload, *counts, f"{by_time['True'] / decided:.0%}" if decided else "-")


def main() -> None:
    chosen = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    chosen.add_argument("--inference", default="resnet50:4,bert_base:2", help="model:batch,...")
    chosen.add_argument("--training", default="resnet50:32,bert_base:8", help="model:batch,...")
    chosen.add_argument("--out", type=Path, help="all kernels with their counters, as JSON")
    chosen.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    options = chosen.parse_args()
    if options.run:
        return run(options.run[0], options.run[1], int(options.run[2]))
    rows = []
    all_counted = {}
    for purpose in ("inference", "training"):
        for word in filter(None, getattr(options, purpose).split(",")):
            model, batch = word.split(":")
            kernels = counted(purpose, model, int(batch))
            rows.append(compared(f"{model} {purpose} b{batch}", kernels))
            all_counted[rows[-1][0]] = kernels
    print(aligned(HEADER, rows))
    if options.out:
        options.out.write_text(json.dumps(all_counted))
    return None


if __name__ == "__main__":
    main()
