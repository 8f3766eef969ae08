"""A server that is paused for a second now and then, by quarters of a second, beside CPU time that the host
took.

    python benchmarks/serving/parts/pauses.py [--rate 1120] [--pauses 6]

Four emulated GPUs. Quarters in which the server was paused are left out, and the one after. The table has
the share in time of the others by how much was stolen in them, so that what a pause costs is told from what
the host does.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))

from load import offer, read_records
from on_gpu.load_on_server import stolen
from peers import Ours, Settings

GPUS = 4
QUARTER_S = 0.25
PAUSE_S = 1.0
APART_S = 5.0
BOUNDS_S = (0.0, 0.03, 0.1, 0.25, 1.0)  # stolen in a quarter


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    flags.add_argument("--rate", type=float, default=1120.0, help="requests/s, 1120 unless given")
    flags.add_argument("--pauses", type=int, default=6, help="6 unless given")
    options = flags.parse_args()
    seconds = APART_S * (options.pauses + 1)
    with Ours().running(GPUS, Settings()) as server, tempfile.TemporaryDirectory() as folder:
        offer(server.url, server.templates, 500.0, 2.0)
        records = Path(folder) / "records.csv"
        stolen_s = list[float]()
        load = threading.Thread(
            target=offer,
            args=(server.url, server.templates, options.rate, seconds),
            kwargs={"warmup": 0.0, "records": records},
        )
        began = time.monotonic()
        load.start()
        pausing = threading.Thread(target=pause, args=(server.tree.stats()[0].pid, began, options.pauses))
        pausing.start()
        for quarter in range(round(seconds / QUARTER_S) + 1):
            time.sleep(max(0.0, began + quarter * QUARTER_S - time.monotonic()))
            stolen_s.append(stolen())
        load.join()
        pausing.join()
        show(np.diff(stolen_s), shares(records, len(stolen_s) - 1))


def pause(process: int, began: float, count: int) -> None:
    for number in range(1, count + 1):
        time.sleep(max(0.0, began + number * APART_S - time.monotonic()))
        os.kill(process, signal.SIGSTOP)
        time.sleep(PAUSE_S)
        os.kill(process, signal.SIGCONT)


def shares(records: Path, quarters: int) -> list[float]:
    requests = read_records(records)
    place = (requests.due_ns / 1e9 / QUARTER_S).astype(int)
    in_time = requests.in_time()
    return [float(in_time[place == quarter].mean()) for quarter in range(quarters)]


def is_paused(quarter: int) -> bool:
    since = quarter * QUARTER_S % APART_S if quarter * QUARTER_S >= APART_S else APART_S / 2
    return since < PAUSE_S + QUARTER_S or since > APART_S - 2 * QUARTER_S


def show(stolen_s: npt.NDArray[np.float64], in_time: list[float]) -> None:
    print("| stolen in a quarter of a second | quarters | in time, mean | worst |\n| --- | --- | --- | --- |")
    undisturbed = [quarter for quarter in range(len(in_time)) if not is_paused(quarter)]
    for low, high in pairwise(BOUNDS_S):
        some = [100 * in_time[quarter] for quarter in undisturbed if low <= stolen_s[quarter] < high]
        if some:
            print(f"| {low:g} to {high:g} s | {len(some)} | {np.mean(some):.1f} % | {min(some):.0f} % |")


if __name__ == "__main__":
    main()
