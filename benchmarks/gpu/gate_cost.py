"""What the gate itself costs: the same clients with and without it, alone on the GPU, in turns.

    python benchmarks/gpu/gate_cost.py --rounds 3

Ratios are of the medians over the rounds: the time of a request one after the other, and of an iteration.
Best effort is measured by itself, and beside a server that has nothing to do: then it has fences to pass.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import gated
from gate import INFERENCE, TRAINING, read_specs
from pair import Client, Spec, aligned, running, window

HEADER = ("client", "plain ms", "gated ms", "ratio")


class Case(NamedTuple):
    spec: Spec
    role: str  # under the gate
    company: bool = False

    @property
    def name(self) -> str:
        return f"{self.spec.kind} {self.spec.name}{', beside an idle server' if self.company else ''}"


def cases(options: Any) -> list[Case]:
    device = ["--device", options.device]
    served = read_specs("serve", options.hp, [*device, "--closed"])
    trained = read_specs("train", options.be, device)
    of_best_effort = [Case(spec, "best-effort", company) for spec in trained for company in (False, True)]
    return [*(Case(spec, "latency") for spec in served), *of_best_effort]


def compared(case: Case, options: Any) -> tuple[str, str, str, str]:
    """Compare both under MPS where there is one: what that costs is not the gate's."""
    under = gated.environment(case.role, options.board)
    plain = {name: value for name, value in under.items() if name.startswith("CUDA_MPS")}
    [server] = read_specs("serve", options.company, ["--device", options.device])
    others = [replace(server, environment=gated.environment("latency", options.board))]
    specs = [replace(case.spec, environment=plain), replace(case.spec, environment=under)]
    specs += others if case.company else []
    with running(specs) as (plain_client, gated_client, *servers):
        rounds = [
            [mean_ms(client, options.seconds, servers) for client in (plain_client, gated_client)]
            for _ in range(options.rounds)
        ]
    plain_ms, gate_ms = (statistics.median(times) for times in zip(*rounds, strict=True))
    return (case.name, f"{plain_ms:.3f}", f"{gate_ms:.3f}", f"{gate_ms / plain_ms:.4f}")


def mean_ms(client: Client, seconds: float, servers: Sequence[Client]) -> float:
    for server in servers:  # so that it is not taken for one that has long been quiet
        server.order("calibrate")
        server.outcome()
    return window({client: ""}, seconds)[client]["mean_ms"]


def main(arguments: Sequence[str] | None = None) -> None:
    chosen = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    chosen.add_argument("--hp", default=INFERENCE, help="model:batch,... that serve")
    chosen.add_argument("--be", default=TRAINING, help="model:batch,... that train")
    chosen.add_argument("--company", default="resnet50:4", help="model:batch of the idle server")
    chosen.add_argument("--rounds", type=int, default=3)
    chosen.add_argument("--seconds", type=float, default=1.0, help="of a window")
    chosen.add_argument("--policy", default="astrarium")
    chosen.add_argument("--board", default=f"bench-{os.getpid()}", help="name of the gate's shared state")
    chosen.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = chosen.parse_args(arguments)
    gated.set_policy(options.board, options.policy)
    rows = [compared(case, options) for case in cases(options)]
    print(aligned(HEADER, rows))


if __name__ == "__main__":
    main()
