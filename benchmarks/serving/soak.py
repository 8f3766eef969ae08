"""Memory of each process of the server under a steady load: its size, and the slope of it."""

from __future__ import annotations

import argparse
import threading
import time
from dataclasses import asdict

from _ours import command_line, reached
from _shared import Row, caption, circumstances, keep, parser, say, show
from load import offer
from peers import Ours, Running, Settings

MB = 1e6
LARGEST_MB = 150.0
FLAT_MB_PER_MINUTE = 0.3  # three megabytes in ten minutes
SETTLED = 0.2  # of the time, which is left out of the slope: caches fill, pools grow to their size

Samples = dict[int, list[tuple[float, float]]]  # by process: seconds and megabytes


def main() -> None:
    options = arguments()
    load_before = circumstances(options.date, 0.0)["load_after"]
    with Ours().running(options.gpus, Settings()) as server:
        rate = options.share * reached(server, options.gpus, options.goodput)
        say(f"{options.minutes:g} minutes at {rate:.0f} requests/s ...")
        rows, samples = soaked(server, rate, options.minutes)
    facts = circumstances(options.date, load_before)
    keep(
        "soak",
        {**facts, "minutes": options.minutes, "rows": [asdict(row) for row in rows], "samples": samples},
    )
    show(rows)
    print(caption(facts))


def arguments() -> argparse.Namespace:
    flags = parser(__doc__)
    flags.add_argument("--minutes", type=float, default=1.0, help="1 unless given; 10 is what counts")
    flags.add_argument("--gpus", type=int, default=1, help="1 unless given")
    flags.add_argument("--share", type=float, default=0.8, help="of the goodput, 0.8 unless given")
    flags.add_argument("--goodput", type=float, help="requests/s; searched for unless given")
    return flags.parse_args()


def soaked(server: Running, rate: float, minutes: float) -> tuple[list[Row], Samples]:
    samples: Samples = {}
    done = threading.Event()
    watcher = threading.Thread(target=watch, args=(server, samples, done, max(1.0, minutes)))
    watcher.start()
    try:
        run = offer(server.url, server.templates, rate, 60 * minutes, warmup=5.0)
    finally:
        done.set()
        watcher.join()
    rows = [Row("answered in time", "%", [100 * run.in_time_share])]
    for pid, memory in samples.items():
        name = "worker" if "live.worker" in command_line(pid) else "frontend"
        rows += about(f"{name} {pid}", memory)
    return rows, samples


def watch(server: Running, samples: Samples, done: threading.Event, every_s: float) -> None:
    began = time.monotonic()
    while not done.wait(every_s):
        for process in server.tree.stats():
            memory = samples.setdefault(process.pid, [])
            memory.append((round(time.monotonic() - began, 2), process.rss / MB))


def about(name: str, memory: list[tuple[float, float]]) -> list[Row]:
    largest = max(size for _, size in memory)
    return [
        Row(f"{name}: largest resident size", "MB", [largest], bar=LARGEST_MB, less_is_better=True),
        Row(f"{name}: slope", "MB/minute", [slope(memory)], bar=FLAT_MB_PER_MINUTE, less_is_better=True),
    ]


def slope(memory: list[tuple[float, float]]) -> float:
    """Return the slope by least squares, in megabytes a minute, of what comes after the beginning."""
    settled = memory[int(SETTLED * len(memory)) :]
    middle = sum(at for at, _ in settled) / len(settled)
    level = sum(size for _, size in settled) / len(settled)
    spread = sum((at - middle) ** 2 for at, _ in settled)
    return 60 * sum((at - middle) * (size - level) for at, size in settled) / spread if spread else 0.0


if __name__ == "__main__":
    main()
