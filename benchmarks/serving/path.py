"""What the server itself costs: a model that takes no time, over HTTP and gRPC, 1 and 64 models."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict

from _shared import Row, caption, circumstances, keep, parser, say, show
from grpc_load import all_out, offer_grpc
from load import Limits, Result, offer
from peers import Ours, Running, Settings

BEYOND = 200_000.0  # requests/s: more than any server of two cores answers
QUIET = 200.0  # requests/s, for the latency that the server adds
SLO_MS = 1000.0
ALL_OUT = Limits(
    outstanding=64, lag_p99_ms=100.0, lag_max_ms=1000.0
)  # 64 clients that wait for their answers
NO_COST = {"policy": "eager", "alpha": "0.001ms", "beta": "0.001ms", "slo": f"{SLO_MS:g}ms"}


def main() -> None:
    options = arguments()
    load_before = circumstances(options.date, 0.0)["load_after"]
    rows: dict[str, list[float]] = {}
    for models in (1, 64):
        ours = Ours(models=models, **NO_COST)
        with ours.running(1, Settings()) as server:
            offer(server.url, server.templates, 500.0, 2.0, SLO_MS)  # everything has been touched once
            for seed in range(1, options.repeats + 1):
                say(f"{models} models, repetition {seed} ...")
                measure(ours, server, options, seed, rows)
    for models in (1, 64):
        ours = Ours(models=models, max_batch=1, **NO_COST)
        with ours.running(1, Settings()) as server:
            offer(server.url, server.templates, 500.0, 2.0, SLO_MS)
            for seed in range(1, options.repeats + 1):
                say(f"{models} models, batches of one, repetition {seed} ...")
                run, cpu = costed(server, options.rate, options.seconds, seed, Limits())
                what = f"HTTP, {options.rate:g} requests/s, batches of one: per core of server"
                rows.setdefault(f"{what}, {models} model{'s' * (models > 1)}", []).append(answered(run) / cpu)
    shown = [row(name, values) for name, values in rows.items()] + comparison(rows)
    facts = circumstances(options.date, load_before)
    keep("path", {**facts, "rows": [asdict(row) for row in shown]})
    show(shown)
    print(caption(facts))


def arguments() -> argparse.Namespace:
    flags = parser(__doc__)
    flags.add_argument("--repeats", type=int, default=3, help="3 unless given")
    flags.add_argument("--seconds", type=float, default=4.0, help="of each run, 4 unless given")
    flags.add_argument(
        "--rate", type=float, default=1000.0, help="requests/s of the steady load, 1000 unless given"
    )
    return flags.parse_args()


def measure(
    ours: Ours, server: Running, options: argparse.Namespace, seed: int, rows: dict[str, list[float]]
) -> None:
    def add(what: str, value: float) -> None:
        rows.setdefault(f"{what}, {ours.models} model{'s' * (ours.models > 1)}", []).append(value)

    quiet = offer(server.url, server.templates, QUIET, options.seconds, SLO_MS, seed)
    add("HTTP, 200 requests/s: median", quiet.latency_ms.p50)
    add("HTTP, 200 requests/s: p99", quiet.latency_ms.p99)
    run, cpu = costed(server, options.rate, options.seconds, seed, Limits())
    add(f"HTTP, {options.rate:g} requests/s: per core of server", answered(run) / cpu)
    run, cpu = costed(server, BEYOND, options.seconds, seed, ALL_OUT)
    add("HTTP, all out: answers a second", answered(run) / run.wall_s)
    add("HTTP, all out: per core of server", answered(run) / cpu)
    before = server.tree.cpu_s()
    grpc = offer_grpc(server.place.grpc_port, ours.model_names(), QUIET, options.seconds, seed)
    add("gRPC, 200 requests/s: median", grpc.p50_ms)
    add("gRPC, 200 requests/s: p99", grpc.p99_ms)
    add("gRPC, 200 requests/s: per core of server", grpc.answered / (server.tree.cpu_s() - before))
    before = server.tree.cpu_s()
    most = all_out(server.place.grpc_port, ours.model_names(), options.seconds)
    time.sleep(0.1)
    add("gRPC, all out: answers a second", most.answered / most.wall_s)
    add("gRPC, all out: per core of server", most.answered / (server.tree.cpu_s() - before))


def costed(server: Running, rate: float, seconds: float, seed: int, limits: Limits) -> tuple[Result, float]:
    """A run without a warm-up, so that every answer and all CPU time of every process belong together."""
    before = server.tree.cpu_s()
    run = offer(server.url, server.templates, rate, seconds, SLO_MS, seed, warmup=0.0, limits=limits)
    time.sleep(0.1)
    return run, server.tree.cpu_s() - before


def answered(run: Result) -> int:
    return run.in_time + run.late


def row(name: str, values: list[float]) -> Row:
    if name.startswith("HTTP") and ": median" in name:
        return Row(name, "ms", values, bar=1.0, less_is_better=True)
    if name.startswith("HTTP") and ": p99" in name:
        return Row(name, "ms", values, bar=3.0, less_is_better=True)
    if name.startswith("gRPC, all out: per core"):
        return Row(name, "requests/CPU-s", values, bar=8000.0)
    if "all out: per core" in name:
        return Row(name, "requests/CPU-s", values, bar=40_000.0 if "64 models" in name else 60_000.0)
    unit = "ms" if "median" in name or "p99" in name else "requests/CPU-s" if "core" in name else "requests/s"
    return Row(name, unit, values)


def comparison(rows: dict[str, list[float]]) -> list[Row]:
    """64 models are to cost no more for a request than one; 5 % are left to chance. This holds for batches of
    one: requests of one model may share a batch, those of 64 cannot."""
    compared = []
    for name, values in rows.items():
        if "HTTP" in name and "per core" in name and name.endswith(", 1 model"):
            many = rows[name.replace(", 1 model", ", 64 models")]
            ratios = [a / b for a, b in zip(values, many, strict=True)]
            what = name.removesuffix(", 1 model").replace("per core of server", "CPU of 64 models over one")
            bar = 1.05 if "batches of one" in what else None
            compared.append(Row(what, "x", ratios, bar=bar, less_is_better=True))
    return compared


if __name__ == "__main__":
    main()
