"""How fair policies are on the workloads of Themis, over several seeds: what docs/cluster/fairness.md tells.

python benchmarks/cluster/fairness.py --workload 2 --seeds 5 -p themis -p themis:leftovers=worst -p tiresias
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from statistics import mean, median
from typing import Any, NamedTuple

import msgspec

from astrarium.cluster.contract import App, AppArrived, Event, MachineJoined
from astrarium.cluster.fairness import Definition, rho
from astrarium.cluster.policies import Arbiter, cluster_policies
from astrarium.cluster.policies._leased import Leased
from astrarium.cluster.slowdowns import Slowdowns
from astrarium.cluster.state import AppRow, ClusterState
from astrarium.cluster.workloads.apps import HOUR, DrawnApp, scaled
from astrarium.cluster.workloads.themis import successive_halving, sweeps
from astrarium.cluster.workloads.themis.clusters import MACHINES
from astrarium.cluster.workloads.themis.models import SLOWDOWNS
from astrarium.cluster.world import ClusterWorld
from astrarium.core.choice import chosen, parse_choice
from astrarium.core.engine import Engine
from astrarium.core.quantities import Time
from astrarium.core.random_streams import stream
from astrarium.run.simulate import simulate
from astrarium_papers.themis._workloads import TESTBED_LOAD, on_testbed

RIVALS = ["gandiva", "tiresias", "optimus", "slaq", "srtf", "srsf"]


class Outcome(NamedTuple):
    """Of one run: rho of all apps, the least first, and what it took."""

    share: list[float]
    equation_1: list[float]
    demand: list[float]
    gpu_hours: float
    life: float  # hours, of the median app
    mean: float  # hours, over all apps
    apps: float  # at a time


def main() -> None:
    options = _arguments()
    print(
        f"{'policy':28} {'worst share (spread)':>24} {'p90':>6} {'median':>7} {'worst eq. 1 (spread)':>24}"
        f" {'worst demand (spread)':>24}"
        f" {'GPU-h':>6} {'life h':>7} {'mean h':>7} {'apps':>5}"
    )
    for policy in options.policy or ["themis", *RIVALS]:
        outcomes = [played(policy, workload(options, seed), options) for seed in range(1, options.seeds + 1)]
        print(_line(policy, outcomes), flush=True)
        for seed, outcome in enumerate(outcomes if options.each else (), start=1):
            print(_line(f"  seed {seed}", [outcome]), flush=True)


def workload(options: argparse.Namespace, seed: int) -> tuple[DrawnApp, ...]:
    if options.setting == "testbed":
        load = options.load or TESTBED_LOAD
        return on_testbed(options.workload, seed, options.apps, load, network=options.network)
    sizes = sweeps.TRACED if options.setting == "trace" else sweeps.TRACE
    drawn = sweeps.parametric(seed, options.apps, network=options.network, sizes=sizes)
    drawn = successive_halving.halving(drawn, seed) if options.workload == 2 else drawn
    return scaled(drawn, options.hours * options.apps / sweeps.APPS, options.load or 50.0)


def played(named: str, apps: Sequence[DrawnApp], options: argparse.Namespace) -> Outcome:
    events: list[tuple[Time, Event]] = [
        (0, MachineJoined(msgspec.structs.replace(machine, network=options.network)))
        for machine in MACHINES["themis-testbed"]
    ]
    events += [(app.arrival, AppArrived(msgspec.convert(app, App, from_attributes=True))) for app in apps]
    state = ClusterState(_slowdowns())
    engine = Engine(state, Arbiter(_policy(named, options.scattered)))
    simulate(engine, events, ClusterWorld(_slowdowns()))
    rows = list(state.ledger.rows.values())
    size = state.floor.size
    lives = [row.ended - row.arrived for row in rows]
    return Outcome(
        share=_rhos(rows, size, "share"),
        equation_1=_rhos(rows, size, "equation-1"),
        demand=_rhos(rows, size, "demand"),
        gpu_hours=sum(row.service for row in rows) / HOUR,
        life=median(lives) / HOUR,
        mean=mean(lives) / HOUR,
        apps=sum(lives) / max(row.ended for row in rows),
    )


def _policy(named: str, scattered: bool) -> Any:
    policy = chosen(cluster_policies, parse_choice(named))
    if scattered and isinstance(policy, Leased):
        policy.pick = _anywhere  # type: ignore[method-assign]
    return policy


def _anywhere(now: Time, row: AppRow, count: int, offer: Any) -> list[int]:
    """Pick as a policy does that is blind to places: any GPUs, even where the app's jobs stood elsewhere."""
    free = sorted(offer.state.free - offer.taken)
    return [
        free[int(place)] for place in stream(1, "scattered", now, row.app.id).permutation(len(free))[:count]
    ]


def _slowdowns() -> Slowdowns:
    known = {key: dict(slowdown) for key, slowdown in SLOWDOWNS.items()}
    return Slowdowns(known)


def _rhos(rows: Sequence[AppRow], size: int, definition: Definition) -> list[float]:
    return sorted(rho(row.ended - row.arrived, row.app, size, row.contention, definition) for row in rows)


def _line(policy: str, outcomes: Sequence[Outcome]) -> str:
    p90 = median(outcome.share[int(0.9 * len(outcome.share))] for outcome in outcomes)
    middle = median(median(outcome.share) for outcome in outcomes)
    share = [outcome.share[-1] for outcome in outcomes]
    equation_1 = [outcome.equation_1[-1] for outcome in outcomes]
    demand = [outcome.demand[-1] for outcome in outcomes]
    return (
        f"{policy:28} {_spread(share):>24} {p90:6.2f} {middle:7.2f} {_spread(equation_1):>24}"
        f" {_spread(demand):>24}"
        f" {mean(outcome.gpu_hours for outcome in outcomes):6.0f}"
        f" {median(outcome.life for outcome in outcomes):7.2f}"
        f" {mean(outcome.mean for outcome in outcomes):7.2f}"
        f" {mean(outcome.apps for outcome in outcomes):5.1f}"
    )


def _spread(values: Sequence[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workload", type=int, choices=(1, 2), default=1)
    parser.add_argument(
        "--setting",
        choices=("testbed", "scaled", "trace"),
        default="testbed",
        help="apps with the testbed's tasks; as is printed of the trace; as the trace is",
    )
    parser.add_argument("--load", type=float, help="GPUs that keep up with what arrives")
    parser.add_argument(
        "--hours", type=float, default=1000.0, help="GPU-hours of all apps, but on the testbed"
    )
    parser.add_argument("--apps", type=int, default=sweeps.APPS)
    parser.add_argument("--network", default="k80", help="k80, p100, v100 or fast")
    parser.add_argument("--scattered", action="store_true", help="rivals are blind to places")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--each", action="store_true", help="a line for each seed, too")
    parser.add_argument("-p", "--policy", action="append", help="NAME or NAME:KEY=VALUE,...")
    return parser.parse_args()


if __name__ == "__main__":
    main()
