"""Peak memory of a million simulated requests, with and without per-request outcomes in the folder."""

from __future__ import annotations

import tempfile

from _measure import Row, astrarium, main

MILLION = ["examples/zoo.yaml", "-o", "workload.rate=17000/s", "-o", "workload.duration=60s"]
MIB = 2**20


def measure(repeats: int) -> list[Row]:
    return [
        row("a million requests, outcomes kept", [], 1024, repeats),
        row("a million requests, --no-outcomes", ["--no-outcomes"], 200, repeats),
    ]


def row(what: str, options: list[str], bar: float, repeats: int) -> Row:
    peaks = [peak(options) / MIB for _ in range(repeats)]
    return Row(what, "MiB", peaks, bar=bar, less_is_better=True)


def peak(options: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        return astrarium("simulate", *MILLION, *options, "--json", "--out", f"{folder}/run").peak_rss


if __name__ == "__main__":
    main(measure, repeats=3)
