"""The same arrivals simulated and served: attainment in both, and where a difference comes from."""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from _ours import grown, metrics, reached
from _shared import Row, caption, circumstances, keep, parser, say, show
from load import SLO_MS, Result, offer_arrivals, read_records
from peers import Ours, Running, Settings
from peers.apps.emulated_gpu import ALPHA_MS, BETA_MS
from peers.ours import COMMAND
from peers.peer import until_quiet

SHARES = (0.5, 0.8, 1.0)
POINTS = 2.0
WARMUP_S = 1.0
IN_TIME = 1  # the code of this outcome in a run folder's requests.npz


@dataclass(frozen=True)
class Simulated:
    attainment: float  # of requests after the warm-up
    in_time: Any  # by request, all of them
    p50_ms: float
    p99_ms: float


def main() -> None:
    options = arguments()
    load_before = circumstances(options.date, 0.0)["load_after"]
    ours = Ours()
    rows: list[Row] = []
    with ours.running(options.gpus, Settings()) as server, tempfile.TemporaryDirectory() as folder:
        goodput = reached(server, options.gpus, options.goodput)
        for share in SHARES:
            arrivals = poisson(share * goodput, WARMUP_S + options.seconds, options.seed)
            say(f"{share:g} of the goodput: {len(arrivals)} requests ...")
            rows += compared(ours, server, share, arrivals, options.gpus, Path(folder) / f"{share:g}")
    facts = circumstances(options.date, load_before)
    keep("fidelity", {**facts, "goodput": goodput, "rows": [asdict(row) for row in rows]})
    show(rows)
    print(caption(facts))


def arguments() -> argparse.Namespace:
    flags = parser(__doc__)
    flags.add_argument("--gpus", type=int, default=1, help="1 unless given")
    flags.add_argument("--seconds", type=float, default=10.0, help="of arrivals, 10 unless given")
    flags.add_argument("--goodput", type=float, help="requests/s; searched for unless given")
    flags.add_argument("--seed", type=int, default=1, help="of the arrivals, 1 unless given")
    return flags.parse_args()


def poisson(rate: float, seconds: float, seed: int) -> list[int]:
    chance = random.Random(seed)
    at = 0.0
    arrivals = []
    while (at := at + chance.expovariate(rate)) < seconds:
        arrivals.append(round(at * 1e9))
    return arrivals


def compared(
    ours: Ours, server: Running, share: float, arrivals: list[int], gpus: int, folder: Path
) -> list[Row]:
    folder.mkdir()
    ideal = simulated(ours, arrivals, gpus, folder / "ideal", {})
    delayed = simulated(ours, arrivals, gpus, folder / "delayed", planned_delays(server))
    until_quiet(server)
    before = metrics(server.url)
    records = folder / "records.csv"
    run = offer_arrivals(server.url, server.templates, arrivals, warmup=WARMUP_S, records=records)
    change = grown(before, metrics(server.url))
    what = f"at {share:g}"
    gap = 100 * (run.in_time_share - delayed.attainment)
    return [
        Row(f"{what}: simulated, no delays", "% in time", [100 * ideal.attainment]),
        Row(
            f"{what}: simulated with the delays that the server plans with",
            "% in time",
            [100 * delayed.attainment],
        ),
        Row(f"{what}: served", "% in time", [100 * run.in_time_share]),
        Row(
            f"{what}: difference to no delays",
            "points",
            [abs(100 * (run.in_time_share - ideal.attainment))],
            POINTS,
            True,
        ),
        Row(f"{what}: difference with delays", "points", [abs(gap)], POINTS, True),
        *sources(what, run, delayed, change),
        *by_request(what, delayed, records),
    ]


def simulated(ours: Ours, arrivals: list[int], gpus: int, folder: Path, network: dict[str, str]) -> Simulated:
    folder.mkdir()
    csv_lines = ["time_ns,model", *(f"{at},{ours.model_names()[0]}" for at in arrivals)]
    (folder / "trace.csv").write_text("\n".join(csv_lines) + "\n", encoding="utf-8")
    workload = {"arrivals": "trace", "file": "trace.csv", "warmup": f"{WARMUP_S:g}s"}
    scenario = {**json.loads(ours.scenario(gpus, workload)), "network": network}
    (folder / "scenario.yaml").write_text(json.dumps(scenario), encoding="utf-8")
    command = [*COMMAND, "simulate", str(folder / "scenario.yaml"), "--json", "--out", str(folder / "run")]
    result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    model = result["models"][ours.model_names()[0]]
    with np.load(folder / "run" / "requests.npz") as requests:
        in_time = requests["outcome"] == IN_TIME
    return Simulated(result["attainment"], in_time, model["p50_ms"], model["p99_ms"])


def planned_delays(server: Running) -> dict[str, str]:
    """As the server announced them when it had measured its own machine."""
    delays = re.search(r"control ([\d.]+) ms, response ([\d.]+) ms", server.tree.log)
    return {"control": f"{delays[1]}ms", "response": f"{delays[2]}ms"} if delays else {}


def sources(what: str, run: Result, simulation: Simulated, change: dict[str, float]) -> list[Row]:
    """Where time goes that the simulator does not spend, in milliseconds."""
    batches = change["astrarium_execution_seconds_count"] or 1.0
    executed = 1e3 * change["astrarium_execution_seconds_sum"]
    expected = ALPHA_MS * change["astrarium_batch_size_sum"] + BETA_MS * batches
    occupied = 1e3 * change["astrarium_gpu_busy_seconds_total"]
    answers = change["astrarium_latency_seconds_count"] or 1.0
    inside = 1e3 * change["astrarium_latency_seconds_sum"] / answers
    medians = {
        "median latency, simulated": simulation.p50_ms,
        "median latency, served": run.latency_ms.p50,
        "a batch takes longer than its profile by": (executed - expected) / batches,
        "a GPU is taken beyond a batch's execution for": (occupied - executed) / batches,
        "an answer spends outside the server": run.latency_ms.mean - inside,
        "the generator was behind its plan, p99": run.lag_ms.p99,
    }
    return [Row(f"{what}: {name}", "ms", [value]) for name, value in medians.items()]


def by_request(what: str, simulation: Simulated, records: Path) -> list[Row]:
    """What became of requests that the simulator answered in time, in percent of all."""
    requests = read_records(records)
    counted = requests.due_ns >= WARMUP_S * 1e9
    in_time = requests.in_time()
    answered = requests.outcome == 200
    lost = simulation.in_time & ~in_time
    barely = requests.in_time(SLO_MS + 1)
    conditions = {
        "in time simulated, refused served": lost & ~answered,
        "in time simulated, late by up to 1 ms served": lost & barely,
        "in time simulated, later than that served": lost & answered & ~barely,
        "not in time simulated, in time served": ~simulation.in_time & in_time,
    }
    return [
        Row(f"{what}: {name}", "%", [100 * float(which[counted].mean())])
        for name, which in conditions.items()
    ]


if __name__ == "__main__":
    main()
