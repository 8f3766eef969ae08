"""What all benchmarks share: rows with repetitions and spread, and children whose cost is counted."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Row:
    """One measured quantity. `bar` is what it must reach: from above if `less_is_better`."""

    what: str
    unit: str
    values: list[float]
    bar: float | None = None
    less_is_better: bool = False

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def met(self) -> bool | None:
        if self.bar is None:
            return None
        return self.median <= self.bar if self.less_is_better else self.median >= self.bar

    @property
    def ratio(self) -> float | None:
        """Return how many times better than the bar; of nothing at all where less is better, there is no
        telling."""
        if self.bar is None or (self.less_is_better and self.median <= 0):
            return None
        return self.bar / self.median if self.less_is_better else self.median / self.bar


class Cost(NamedTuple):
    cpu_s: float
    peak_rss: int  # bytes
    output: str


def child(*command: str) -> Cost:
    """Run to the end and count. The peak includes what this process held at the fork: stay small."""
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, cwd=ROOT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command)
        output.seek(0)
        return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, output.read())


def astrarium(*arguments: str) -> Cost:
    """Return the command line of this Python's installation."""
    return child(str(Path(sys.executable).with_name("astrarium")), *arguments)


def main(measure: Callable[[int], list[Row]], repeats: int) -> None:
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--repeats", type=int, default=repeats, help=f"{repeats} unless given")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error("--repeats must be at least 1")
    rows = measure(options.repeats)
    if options.json:
        print(json.dumps([asdict(row) for row in rows]))
    else:
        show(rows)


HEADER = ("what", "measured", "bar", "met", "times the bar", "spread", "repeats")


def show(rows: Sequence[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*HEADER)
    for row in rows:
        style = {True: "green", False: "red", None: ""}[row.met]
        table.add_row(*cells(row), style=style)
    console = Console()
    (console if console.is_terminal else Console(width=160)).print(table)


def markdown(rows: Sequence[Row]) -> str:
    lines = [HEADER, ("---",) * len(HEADER), *(cells(row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cells(row: Row) -> tuple[str, ...]:
    bar = "" if row.bar is None else f"{'≤' if row.less_is_better else '≥'} {number(row.bar)}"
    met = {True: "yes", False: "NO", None: ""}[row.met]
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    spread = f"{number(min(row.values))} to {number(max(row.values))}"
    measured = f"{number(row.median)} {row.unit}".strip()
    return (row.what, measured, bar, met, ratio, spread, str(len(row.values)))


def number(value: float) -> str:
    """Return a number with three digits that matter, and as many zeros as it takes."""
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
