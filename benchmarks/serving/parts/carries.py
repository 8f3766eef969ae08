"""What the path carries, and what it keeps of it in overload: a model whose batches take 50 us.

    python benchmarks/serving/parts/carries.py [--threads 4]

First what the server costs while nobody asks, and by request at a thousand a second. Then 64 clients that
wait for their answers find what the path carries; then so many times that are offered, whatever the server
does. The generator, the server and its worker share the machine, so their shares of its CPU time, and what
other guests stole of it, stand beside the answers. By its own account, the CPU time of its threads, a server
carries more where these lack a core.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))

import uvloop
from _ours import metrics
from _shared import caption, circumstances, keep, parser, say
from load import Limits, Result, offer
from peers import Ours, Running, Settings

from astrarium.server.path_trial.clients import asked

SLO_MS = 10.0
RECOMMENDER = {"alpha": "0.0002ms", "beta": "0.05ms", "slo": f"{SLO_MS:g}ms"}
QUIET = 1000.0  # requests/s
LOADS = (0.5, 0.8, 1.0, 1.5, 2.0, 3.0)
TICKS = 100.0  # a second, in /proc/stat


class Threaded(Ours):
    """Our server with so many network threads."""

    def __init__(self, threads: int | None) -> None:
        super().__init__(max_batch=256, **RECOMMENDER)
        self._threads = threads

    def scenario(self, gpus: int, workload: Mapping[str, object] | None = None) -> str:
        scenario = json.loads(super().scenario(gpus, workload))
        return json.dumps({**scenario, "server": {"threads": self._threads}})


def stolen() -> float:
    """Return the CPU-seconds that other guests of the host have taken."""
    return float(Path("/proc/stat").read_text().split()[8]) / TICKS


def line(load: float, run: Result, server_s: float, stolen_s: float, carried: float) -> dict[str, float]:
    answered = run.in_time + run.late
    measured = run.offered / run.rate
    return {
        "offered, of what is carried": load,
        "offered/s": run.rate,
        "in time": run.in_time / max(1, run.offered),
        "kept": run.in_time / measured / carried,
        "late": run.late / max(1, run.offered),
        "refused": run.refused / max(1, run.offered),
        "timeouts": run.timeouts + run.unsent + run.network_errors,
        "p50 ms": run.latency_ms.p50,
        "p99 ms": run.latency_ms.p99,
        "server's CPU us a request": 1e6 * server_s / max(1, answered + run.refused),
        "stolen s": stolen_s,
        "generator's lag p99 ms": run.lag_ms.p99,
    }


def measured(server: Running, rate: float, seconds: float, limits: Limits) -> tuple[Result, float, float]:
    cpu, gone = server.tree.cpu_s(), stolen()
    run = offer(server.url, server.templates, rate, seconds, SLO_MS, 1, warmup=0.0, limits=limits)
    time.sleep(0.1)
    return run, server.tree.cpu_s() - cpu, stolen() - gone


def at_rest(server: Running, seconds: float) -> dict[str, float]:
    """Return the CPU time of all of the server's processes while nobody asks, and at a quiet rate."""
    time.sleep(1)  # what the last calls left behind is done
    before = server.tree.cpu_s()
    time.sleep(seconds)
    idle = server.tree.cpu_s() - before
    limits = Limits(lag_p99_ms=1e9, lag_max_ms=1e9)
    run, quiet, _ = measured(server, QUIET, seconds, limits)
    return {
        "idle, CPU ms a second": 1e3 * idle / seconds,
        f"at {QUIET:g}/s, CPU us a request": 1e6 * quiet / run.offered,
        "of it while idle": 1e6 * idle / run.offered,
    }


def main() -> None:
    flags = parser(__doc__)
    flags.add_argument("--seconds", type=float, default=4.0, help="of each load, 4 unless given")
    flags.add_argument("--clients", type=int, default=64, help="that find what is carried, 64 unless given")
    flags.add_argument("--threads", type=int, help="network threads, the server's own choice unless given")
    options = flags.parse_args()
    load_before = circumstances(options.date, 0.0)["load_after"]
    rows = []
    with Threaded(options.threads).running(1, Settings()) as server:
        offer(server.url, server.templates, 500.0, 2.0, SLO_MS)  # everything has been touched once
        quiet = at_rest(server, options.seconds)
        say(", ".join(f"{name}: {value:,.3g}" for name, value in quiet.items()))
        call = server.templates[0].raw(f"127.0.0.1:{server.place.port}")
        answers = uvloop.run(asked(server.place.port, options.clients, options.seconds, [call]))
        carried = answers["200"] / options.seconds
        own = metrics(server.url)["astrarium_path_carries"]
        say(f"carried: {carried:,.0f} requests/s; by the server's own account {own:,.0f}")
        for load in LOADS:
            limits = Limits(outstanding=20_000, lag_p99_ms=1e9, lag_max_ms=1e9)
            rows.append(line(load, *measured(server, load * carried, options.seconds, limits), carried))
            say(", ".join(f"{name}: {value:,.3g}" for name, value in rows[-1].items()))
    facts = circumstances(options.date, load_before)
    keep("carries", {**facts, **quiet, "carried": carried, "carries": own, "rows": rows})
    print(caption(facts))


if __name__ == "__main__":
    main()
