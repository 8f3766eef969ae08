"""What cluster policies decide."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from random import Random
from typing import Any

from astrarium.cluster.policies import Arbiter, cluster_policies
from astrarium.cluster.scenario.build import build as build_cluster
from astrarium.cluster.scenario.build import slowdowns
from astrarium.cluster.scenario.read import ClusterScenario
from astrarium.cluster.scenario.read import parse as parse_cluster
from astrarium.cluster.state import ClusterState
from astrarium.cluster.world import ClusterWorld
from astrarium.core.choice import chosen as chosen_policy
from astrarium.core.engine import Engine
from astrarium.core.trace import Step
from astrarium.run.simulate import simulate
from tests.support.decisions.digests import Case, Parameters, Runs, decided, variants
from tests.support.decisions.scenarios import EXAMPLES, SEED, one_of
from tests.support.scenario_files import load_cluster

CLUSTERS = ["cluster", "live"]


def cluster_example(name: str) -> ClusterScenario:
    return load_cluster(EXAMPLES / "cluster" / f"{name}.yaml", SEED)


def themis_cluster(seed: int) -> ClusterScenario:
    """Apps as Themis draws them."""
    return parse_cluster(
        {
            "machines": [{"count": 4, "gpus": 4, "slot": 2, "racks": 2, "network": "k80"}],
            "apps": {"themis": 1 + seed % 2, "count": 8, "gpu_hours": 120.0, "load": 16.0, "network": "k80"},
            "slowdowns": {"table": "themis", "told": True},
            "costs": {"startup": "10s", "checkpoints": "10min"},
            "seed": seed,
        }
    )


def random_cluster(seed: int) -> ClusterScenario:
    draw = Random(f"cluster {seed}")
    machines = [
        {
            "count": draw.randint(1, 3),
            "gpus": one_of(draw, 2, 4, 8),
            "slot": 2,
            "rack": rack,
            "network": "k80",
        }
        for rack in range(2)
    ]
    changes = [
        {"at": "90min", "lose": 0},
        {"at": "3h", "join": {"gpus": 4, "slot": 2, "rack": 0, "network": "k80"}},
    ]
    return parse_cluster(
        {
            "machines": machines,
            "apps": [_app(draw, place) for place in range(8)],
            "slowdowns": {"table": "themis", "told": seed % 2 == 0},
            "costs": {"startup": one_of(draw, "0s", "30s"), "checkpoints": one_of(draw, "0s", "10min")},
            "changes": changes if seed % 2 else [],
            "seed": seed,
        }
    )


def _app(draw: Random, place: int) -> dict[str, Any]:
    kind = one_of(draw, "jobs", "jobs", "curve", "halving")
    app = {
        "name": f"app{place}",
        "kind": kind,
        "team": f"team{draw.randint(0, 2)}",
        "model": one_of(draw, "VGG16", "ResNet50", "Transformer", "LangModel", ""),
        "arrival": f"{draw.randint(0, 240)}min",
        "gpus": one_of(draw, 1, 1, 2, 4),
    }
    app["most"] = app["gpus"] * one_of(draw, 1, 2)
    if kind == "halving":
        return {**app, "jobs": 4, "budget": f"{draw.randint(4, 12)}h"}
    length = draw.randint(15, 150)
    expected = {"expected": f"{2 * length}min"} if kind == "curve" else {}
    return {**app, "jobs": one_of(draw, 1, 3, 6), "length": f"{length}min", "spread": 0.4, **expected}


OTHER_CLUSTER: list[tuple[str, Parameters]] = [
    ("astrarium", {"definition": "share", "round": "5min"}),
    ("themis", {"f": 0.3, "lease": "5min", "definition": "equation-1"}),
    ("themis", {"error": 0.2, "leftovers": "worst"}),
    ("tiresias", {"lease": "5min", "gangs": "skip"}),
    ("tiresias-2d", {"promote": 2.0}),
]


def cluster(scenario: ClusterScenario, others: Iterable[tuple[str, Parameters]] = ()) -> Runs:
    for label, (name, parameters) in variants(cluster_policies.names(), others).items():
        own = scenario.policy.name == name and not parameters
        chosen = scenario if own else scenario.with_policy(name, **parameters)
        yield label, "python", decided(cluster_steps(chosen))


def cluster_steps(scenario: ClusterScenario) -> list[Step]:
    steps = list[Step]()
    costs = scenario.costs
    state = ClusterState(slowdowns(scenario, believed=True), costs.startup, checkpoints=costs.checkpoints)
    policy = Arbiter(chosen_policy(cluster_policies, scenario.policy))
    world = ClusterWorld(slowdowns(scenario), costs.startup, costs.checkpoints)
    simulate(Engine(state, policy, record=steps.append), build_cluster(scenario).arrivals, world)
    return steps


def cases() -> Iterator[Case]:
    for name in CLUSTERS:
        yield Case("cluster", name, cluster, partial(cluster_example, name))
    for seed in range(1, 6):
        varied = partial(cluster, others=OTHER_CLUSTER)
        yield Case("cluster", f"themis-{seed}", cluster, partial(themis_cluster, seed), seed > 1)
        yield Case("cluster", f"random-{seed}", varied, partial(random_cluster, seed), seed > 2)
