"""How soon a server is up, and back after its only worker was killed (kill -9) under load.

    python benchmarks/serving/parts/back_soon.py [--models encoder resnet50] [--without-reserve]
    python benchmarks/serving/parts/back_soon.py --device emulated

The models of gpu.py, one after the other, each alone on a GPU, at about half of the goodput of an H200. Each
is started, and its worker killed three times. By start: until the server answers. By kill: until the first
request that was due afterwards is answered in time, and until .95 are in time again (for half a second). The
second table says what the worker's start consisted of, in seconds, as the server logs it; `later` is what was
captured while it served. A model takes about 70 s. `--device cpu` and `--device emulated` are for trying the
script without a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

sys.path.insert(1, str(Path(__file__).resolve().parents[1]))

from _ours import metrics, workers
from _shared import parser, say
from load import Limits, generator, offer, read_records
from on_gpu.models import MODELS, Model
from on_gpu.scenario import written
from on_gpu.servers import OnGpu
from peers.peer import Place, Running, Settings

KILLS = 3
STEADY_S = 3.0  # before the first kill
WINDOW_S = 0.1
WINDOWS = 5  # so many in a row with enough in time are called back
ENOUGH = 0.95
PHASES = ("start", "imports", "context", "build", "weights", "buffers", "graphs", "warm-up", "lead", "load")
OPTIONAL = "try:\n    import torchvision\nexcept ImportError:\n    pass  # the encoder does without\n"
LIMITS = Limits(lag_p99_ms=50.0, lag_max_ms=1000.0)  # while a model is loaded, the generator shares its cores
# Measured on an H200 on 2026-11-17 (ms, see wrong_plans.py), and about half of the goodput, in requests/s.
TABLES = {
    "encoder": ({1: 0.531, 4: 0.586, 8: 0.718, 16: 1.02, 32: 1.692, 64: 3.076}, 5000.0),
    "resnet50": ({1: 0.893, 4: 0.992, 8: 1.139, 16: 1.508, 32: 2.383, 64: 4.254}, 3500.0),
}


@dataclass(frozen=True)
class Load:
    slo_ms: float
    rate: float
    apart_s: float  # from kill to kill


@dataclass
class Recovery:
    """What was found of one start: of the server, or of a worker after a kill at *at* (seconds)."""

    name: str
    at: float = 0.0
    reserved: bool = False
    first: float = float("inf")
    back: float = float("inf")
    phases: dict[str, float] = field(default_factory=dict)


class Restarted(OnGpu):
    """The server of gpu.py, whose log can be read by programs."""

    def __init__(self, model: Model, scenario: Path) -> None:
        super().__init__({model.name: (model, 1.0)}, scenario)

    def command(self, place: Place, gpus: int, settings: Settings) -> list[str]:
        return [*super().command(place, gpus, settings), "--log", "json"]


def main() -> None:
    options = arguments()
    generator()  # compiled before anything is timed
    for model in (model for model in MODELS if model.name in options.models):
        with tempfile.TemporaryDirectory() as folder:
            scenario, load = prepared(Path(folder), model, options)
            show(model.name, load, list(measured(Restarted(model, scenario), load)))


def arguments() -> argparse.Namespace:
    options = parser(__doc__)
    names = [model.name for model in MODELS]
    options.add_argument("--models", nargs="+", default=names, choices=names, help="both unless given")
    options.add_argument("--device", default="cuda", choices=["cuda", "cpu", "emulated"])
    options.add_argument("--rate", type=float, help="requests/s; about half of the goodput unless given")
    options.add_argument("--apart", type=float, default=15.0, help="seconds from kill to kill")
    options.add_argument("--without-reserve", action="store_true", help="to compare with")
    return options.parse_args()


def prepared(folder: Path, model: Model, options: argparse.Namespace) -> tuple[Path, Load]:
    path = written(folder, {model.name: (model, 1.0)}, True, "")
    code = path.with_name("models.py")
    code.write_text(code.read_text().replace("import torchvision\n", OPTIONAL))
    document = yaml.safe_load(path.read_text())
    entry = document["models"][model.name]
    slo_ms = 25.0
    (table, rate) = TABLES[model.name]
    document["server"]["reserve"] = not options.without_reserve
    if options.device == "cpu":
        document["server"]["device"], entry["max_batch"] = "cpu", 2
        table = {1: 400.0, 2: 700.0}
        rate = 0.5
        slo_ms = 5000.0
        entry["backend"]["torch"]["dtype"] = "fp32"
    elif options.device == "emulated":
        del entry["backend"]
        rate = 200.0
    entry["slo"] = f"{slo_ms:g}ms"
    entry["profile"]["table"] = {size: f"{took:g}ms" for size, took in table.items()}
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return path, Load(slo_ms, options.rate or rate, options.apart)


def measured(peer: Restarted, load: Load) -> Iterator[Recovery]:
    began = time.monotonic()
    with peer.running(1, peer.settings[0]) as server:
        start = Recovery("start", first=time.monotonic() - began)
        say(f"up after {start.first:.1f} s; {load.rate:g} requests/s ...")
        until_whole(server, load.apart_s)
        recoveries = [start, *killed(server, load)]
        for recovery, (reserved, phases) in zip(recoveries, starts(server.tree.log), strict=False):
            recovery.reserved = reserved
            recovery.phases = phases
    yield from recoveries


def killed(server: Running, load: Load) -> list[Recovery]:
    """Kill the worker again and again under load; return what came of it."""
    kills: list[Recovery] = []
    with tempfile.TemporaryDirectory() as folder:
        records = Path(folder) / "records.csv"
        killer = threading.Thread(target=lambda: kills.extend(kill_in_turn(server, load.apart_s)))
        killer.start()
        seconds = STEADY_S + KILLS * load.apart_s
        offer(server.url, server.templates, load.rate, seconds, load.slo_ms, records=records, limits=LIMITS)
        killer.join()
        for kill in kills:
            judge(kill, records, load)
    return kills


def kill_in_turn(server: Running, apart: float) -> Iterator[Recovery]:
    began = time.monotonic()
    for number in range(KILLS):
        time.sleep(max(0.0, began + 1.0 + STEADY_S + number * apart - time.monotonic()))
        ready = bool(metrics(server.url).get("astrarium_reserve"))
        there = workers(server)
        if there:
            os.kill(there[0].pid, signal.SIGKILL)
        at = time.monotonic() - began
        say(f"killed at {at:.1f} s, {'a' if ready else 'no'} process in reserve")
        yield Recovery(f"kill {number + 1}", at)


def judge(kill: Recovery, records: Path, load: Load) -> None:
    requests = read_records(records)
    since = requests.due_ns / 1e9 - kill.at
    in_time = requests.in_time(load.slo_ms)
    later = in_time & (since > 0)
    answered = since[later] + requests.latency_ns[later] / 1e9
    kill.first = float(answered.min()) if len(answered) else float("inf")
    window = max(WINDOW_S, 4 / load.rate)
    for number in range(int(load.apart_s / window) - WINDOWS):
        inside = (since > number * window) & (since <= (number + WINDOWS) * window)
        if inside.any() and np.mean(in_time[inside]) >= ENOUGH:
            kill.back = number * window
            return


def until_whole(server: Running, patience_s: float) -> None:
    """Wait for a process in reserve, where there is to be one."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end and not metrics(server.url).get("astrarium_reserve"):
        time.sleep(0.1)


def starts(log: str) -> Iterator[tuple[bool, dict[str, float]]]:
    """Return the starts of workers that a server has logged: whether out of the reserve, and the phases."""
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    phased: list[dict[str, Any]] = [line for line in lines if "phases_s" in line]
    for number, line in enumerate(phased):
        if "start" in line["phases_s"]:
            rest = phased[number + 1]["phases_s"] if number + 1 < len(phased) else {}
            later = rest.get("graphs", 0.0) if "start" not in rest else 0.0
            yield "reserve" in line["message"], {**line["phases_s"], "later": later}


def show(model: str, load: Load, recoveries: list[Recovery]) -> None:
    print(f"\n{model}, SLO {load.slo_ms:g} ms, {load.rate:g} requests/s\n")
    print(f"| | first answer in time, s | {ENOUGH:g} in time again, s | out of the reserve |")
    print("| --- | --- | --- | --- |")
    for recovery in recoveries:
        back = "" if recovery.name == "start" else f"{recovery.back:.2f}"
        print(f"| {recovery.name} | {recovery.first:.2f} | {back} | {'yes' if recovery.reserved else 'no'} |")
    phases = [name for name in (*PHASES, "later") if any(name in recovery.phases for recovery in recoveries)]
    print(f"\n| s | {' | '.join(phases)} | sum |\n| --- |{' --- |' * (len(phases) + 1)}")
    for recovery in recoveries:
        parts = [recovery.phases.get(name, 0.0) for name in phases]
        whole = sum(parts) - recovery.phases.get("later", 0.0)
        print(
            f"| {recovery.name} | {' | '.join(f'{part:.2f}' for part in parts)} | {whole:.2f} |", flush=True
        )


if __name__ == "__main__":
    main()
