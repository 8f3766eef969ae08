"""Workers killed or stopped under load, a server that pauses, a long overload: what clients see of it."""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from _ours import metrics, reached, workers
from _shared import Row, caption, circumstances, keep, parser, say, show
from load import Result, offer, read_records
from parts.attacks import attacks
from parts.deadly import deadly
from peers import Ours, Running, Settings
from peers.peer import until_quiet
from search import TARGET

GPUS = 4
WINDOW_MS = 100.0
STEADY_S = 3.0  # before the first fault
WARMUP_S = 1.0
RECOVERY_S = 2.0
KEPT = 0.95


PAUSE_S = 1.0  # of the server itself


@dataclass(frozen=True)
class Fault:
    name: str
    at: float  # seconds since the load began
    back: float  # seconds from there until as many workers were up as before


def main() -> None:
    options = arguments()
    load_before = circumstances(options.date, 0.0)["load_after"]
    with Ours().running(GPUS, Settings()) as server:
        goodput = reached(server, GPUS, options.goodput)
        rows: list[Row] = []
        windows: dict[str, object] = {}
        for name, cause in (
            ("killed", kill_in_turn),
            ("stopped", stop_in_turn),
            ("paused", pause_the_server),
        ):
            disturbances, windows[name] = disturbed(server, name, cause, 0.7 * goodput, options.apart)
            rows += disturbances
        rows += overloaded(server, goodput, options.seconds)
        rows += attacks(server, options.attack)
    rows += deadly(options.seconds, gpus=2, rate=150.0)
    facts = circumstances(options.date, load_before)
    keep("faults", {**facts, "goodput": goodput, "rows": [asdict(row) for row in rows], "windows": windows})
    show(rows)
    print(caption(facts))


def arguments() -> argparse.Namespace:
    flags = parser(__doc__)
    flags.add_argument("--goodput", type=float, help="requests/s with 4 GPUs; searched for unless given")
    flags.add_argument("--apart", type=float, default=5.0, help="seconds from fault to fault, 5 unless given")
    flags.add_argument(
        "--seconds", type=float, default=15.0, help="of overload, 15 unless given; 60 is what counts"
    )
    flags.add_argument("--attack", type=float, default=8.0, help="seconds of each attack, 8 unless given")
    return flags.parse_args()


Cause = Callable[[Running, float], Iterator[Fault]]


def disturbed(
    server: Running, name: str, cause: Cause, rate: float, apart: float
) -> tuple[list[Row], dict[str, list[float]]]:
    say(f"{name} at {rate:.0f} requests/s ...")
    until_quiet(server)
    faults: list[Fault] = []
    with tempfile.TemporaryDirectory() as folder:
        records = Path(folder) / "records.csv"
        disturber = threading.Thread(target=lambda: faults.extend(cause(server, apart)))
        disturber.start()
        seconds = STEADY_S + GPUS * apart
        run = offer(server.url, server.templates, rate, seconds, warmup=WARMUP_S, records=records)
        disturber.join()
        shares = share_by_window(records)
    until_quiet(server)
    rows = [*accounted(name, server, run), Row(f"{name}: all of it in time", "%", [100 * run.in_time_share])]
    per_second = int(1000 / WINDOW_MS)
    before = float(np.nanmean(shares[int(WARMUP_S) * per_second : int(WARMUP_S + STEADY_S) * per_second]))
    rows.append(Row(f"{name}: in time before the first", "%", [100 * before]))
    for fault in faults:
        rows += about_fault(fault, shares, min(TARGET, TARGET * before))
    return rows, {"in_time_share": shares, "faults_s": [fault.at for fault in faults]}


def kill_in_turn(server: Running, apart: float) -> Iterator[Fault]:
    return signal_in_turn(server, apart, signal.SIGKILL, "killed")


def stop_in_turn(server: Running, apart: float) -> Iterator[Fault]:
    """Workers that no longer do anything, but are there: the server takes them for stuck, and ends them."""
    return signal_in_turn(server, apart, signal.SIGSTOP, "stopped")


def signal_in_turn(server: Running, apart: float, what: signal.Signals, name: str) -> Iterator[Fault]:
    """Always the oldest: one that was restarted is the youngest, so each has its turn."""
    began = time.monotonic()
    for number in range(GPUS):
        time.sleep(max(0.0, began + WARMUP_S + STEADY_S + number * apart - time.monotonic()))
        restarts = metrics(server.url)["astrarium_worker_restarts_total"]
        at = time.monotonic()
        os.kill(workers(server)[0].pid, what)
        back = until_all_are_up(server, restarts, at, apart)
        yield Fault(f"worker {number + 1} {name}", at - began, back)


def pause_the_server(server: Running, apart: float) -> Iterator[Fault]:
    """Its clients and its workers go on meanwhile; none of the workers may be blamed afterwards."""
    began = time.monotonic()
    for number in range(GPUS):
        time.sleep(max(0.0, began + WARMUP_S + STEADY_S + number * apart - time.monotonic()))
        restarts = metrics(server.url)["astrarium_worker_restarts_total"]
        process = workers(server)[0].parent
        os.kill(process, signal.SIGSTOP)
        time.sleep(PAUSE_S)
        os.kill(process, signal.SIGCONT)
        continued = time.monotonic()
        time.sleep(RECOVERY_S)
        blamed = metrics(server.url)["astrarium_worker_restarts_total"] - restarts
        yield Fault(f"server paused for {PAUSE_S:g} s", continued - began, float("inf") if blamed else 0.0)


def until_all_are_up(server: Running, restarts: float, since: float, patience: float) -> float:
    while time.monotonic() < since + patience:
        now = metrics(server.url)
        if now["astrarium_worker_restarts_total"] > restarts and now["astrarium_workers"] == GPUS:
            return time.monotonic() - since
        time.sleep(0.05)
    return float("inf")


def share_by_window(records: Path) -> list[float]:
    """In-time share of the requests that were due in each window, since the load began; NaN if none was."""
    requests = read_records(records)
    window = (requests.due_ns / (WINDOW_MS * 1e6)).astype(int)
    offered = np.bincount(window)
    in_time = np.bincount(window, weights=requests.in_time(), minlength=len(offered))
    with np.errstate(invalid="ignore"):
        return [float(share) for share in in_time / offered]


def about_fault(fault: Fault, shares: list[float], enough: float) -> list[Row]:
    first = int(fault.at * 1000 / WINDOW_MS)
    worst = min(share for share in shares[first : first + 20])
    recovered = recovery_s(shares, first, enough)
    healthy = max(fault.back, recovered)
    return [
        Row(f"{fault.name}: worst 100 ms", "% in time", [100 * worst]),
        Row(f"{fault.name}: all workers up again after", "s", [fault.back]),
        Row(f"{fault.name}: goodput back after", "s", [recovered]),
        Row(f"{fault.name}: healthy again after", "s", [healthy], RECOVERY_S, True),
    ]


def recovery_s(shares: list[float], first: int, enough: float) -> float:
    """From the fault to the beginning of the first half second in which enough is in time again."""
    for start in range(first + 1, len(shares) - 5):
        if np.nanmean(shares[start : start + 5]) >= enough:
            return (start - first) * WINDOW_MS / 1000
    return float("inf")


def accounted(name: str, server: Running, run: Result) -> list[Row]:
    silent = run.timeouts + run.network_errors + run.unsent
    unaccounted = metrics(server.url)["astrarium_unaccounted"]
    return [
        Row(f"{name}: requests without an answer", "", [silent], 0.0, True),
        Row(f"{name}: unaccounted in the server's books", "", [abs(unaccounted)], 0.0, True),
    ]


def overloaded(server: Running, goodput: float, seconds: float) -> list[Row]:
    say(f"{seconds:g} s at three times the goodput ...")
    until_quiet(server)
    run = offer(server.url, server.templates, 3 * goodput, seconds, warmup=WARMUP_S)
    by_second = [in_time / goodput for in_time in run.in_time_in[: int(seconds)]]
    return [
        *accounted("overload", server, run),
        Row("overload: of the goodput kept, by second", "x", by_second, bar=KEPT),
        Row("overload: a refusal takes, median", "ms", [run.refusal_ms.p50]),
        Row("overload: the generator was behind its plan, p99", "ms", [run.lag_ms.p99]),
    ]


if __name__ == "__main__":
    main()
