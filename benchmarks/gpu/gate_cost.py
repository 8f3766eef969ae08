"""What the gate itself costs: the same clients with and without it, alone on the GPU, in turns.

    python benchmarks/gpu/gate_cost.py --rounds 3

Ratios are of the medians over the rounds: the time of a request one after the other, and of an iteration.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import gated
from gate_plan import INFERENCE, TRAINING, read_specs
from pair import Client, Spec, running, window
from pair_rows import aligned

HEADER = ("client", "plain ms", "gated ms", "ratio")


def specs(options: Any) -> list[tuple[Spec, str]]:
    """Clients and the role each of them has under the gate."""
    device = ["--device", options.device]
    served = read_specs("serve", options.hp, [*device, "--closed"])
    trained = read_specs("train", options.be, device)
    return [*((spec, "latency") for spec in served), *((spec, "best-effort") for spec in trained)]


def compared(spec: Spec, role: str, options: Any) -> tuple[str, str, str, str]:
    under = replace(spec, environment=gated.environment(role, options.board))
    with running([spec, under]) as pair:
        rounds = [[mean_ms(client, options.seconds) for client in pair] for _ in range(options.rounds)]
    plain, gate = (statistics.median(times) for times in zip(*rounds, strict=True))
    return (f"{spec.kind} {spec.name}", f"{plain:.3f}", f"{gate:.3f}", f"{gate / plain:.4f}")


def mean_ms(client: Client, seconds: float) -> float:
    return window({client: ""}, seconds)[client]["mean_ms"]


def main(arguments: Sequence[str] | None = None) -> None:
    chosen = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    chosen.add_argument("--hp", default=INFERENCE, help="model:batch,... that serve")
    chosen.add_argument("--be", default=TRAINING, help="model:batch,... that train")
    chosen.add_argument("--rounds", type=int, default=3)
    chosen.add_argument("--seconds", type=float, default=1.0, help="of a window")
    chosen.add_argument("--policy", default="astrarium")
    chosen.add_argument("--board", default=f"bench-{os.getpid()}", help="name of the gate's shared state")
    chosen.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = chosen.parse_args(arguments)
    gated.set_policy(options.board, options.policy)
    rows = [compared(spec, role, options) for spec, role in specs(options)]
    print(aligned(HEADER, rows))


if __name__ == "__main__":
    main()
