"""Scenarios whose decisions are recorded (`decisions.py`): the examples, shortened, and random ones.

All is said that has a default, the seed too: a changed default is no changed decision.
"""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import numpy as np

from astrarium import levels
from astrarium.cluster.scenario.read import ClusterScenario
from astrarium.cluster.scenario.read import parse as parse_cluster
from astrarium.core.quantities import MICROSECOND, MILLISECOND, SECOND, Duration
from astrarium.device.scenario.read import JobScenario
from astrarium.device.scenario.read import parse as parse_jobs
from astrarium.gate.kernel_profiles import KernelProfile
from astrarium.placement.problem import ALONE, PlacementRequests, Problem
from astrarium.serving.contract import GpuJoined, GpuLeft
from astrarium.serving.planning.known import interference_named
from astrarium.serving.scenario import Scenario, load, parse
from astrarium.testing.cases import Case, crowd, with_truth
from astrarium.testing.placement import MIB, SPREAD, gpus, model
from astrarium.tuning.scenario.read import TuningScenario
from astrarium.tuning.scenario.read import parse as parse_tuning
from astrarium_papers.elvinger._v100 import placed_model, v100s
from astrarium_papers.gate_simulation import Party
from astrarium_papers.kernels.trace import KernelTrace
from tests.support.paths import ROOT
from tests.support.scenario_files import load_cluster, load_tuning

EXAMPLES = ROOT / "examples"
SEED = ["seed=1"]
SERVED = ["bursty", "changing", "cold_start", "drift", "dynamic", "heterogeneous", "quickstart", "serve",
          "trace", "zoo"]  # fmt: skip
TUNED = ["hyperband", "live", "pbt"]
MEASURED = ["alexnet", "resnet50", "vgg19"]
CLUSTERS = ["cluster", "live"]


def one_of(draw: Random, *values: Any) -> Any:
    return values[draw.randrange(len(values))]


# serving


def served_example(name: str, requests: int = 500) -> Scenario:
    """The first so many requests of it, about."""
    scenario = load(EXAMPLES / f"{name}.yaml", SEED)
    if scenario.workload.arrivals == "trace":
        return scenario
    end = int(min(scenario.duration, requests * SECOND / scenario.total_rate))
    changes = tuple(
        msgspec.structs.replace(each, at=Duration(each.at * end // scenario.duration))
        for each in scenario.workload.changes
    )
    workload = msgspec.structs.replace(
        scenario.workload, duration=Duration(end), warmup=Duration(0), changes=changes
    )
    return msgspec.structs.replace(scenario, workload=workload)


def random_serving(seed: int, requests: int = 400) -> Scenario:
    """Some models on some GPUs, from a light load to one that is too much; every second one has dynamic
    models too."""
    draw = Random(f"serving {seed}")
    machines = draw.randint(1, 4)
    models = {f"model{place}": _served(draw, seed % 2 == 0 and place == 0) for place in range(3)}
    rate = draw.randint(60, 400) * machines
    arrivals = one_of(
        draw, {"arrivals": "poisson"}, {"arrivals": "gamma", "shape": 0.3}, {"arrivals": "uniform"}
    )
    return parse(
        {
            "cluster": {"gpus": machines},
            "models": models,
            "policy": {"name": "eager"},
            "workload": {
                **arrivals,
                "rate": f"{rate}/s",
                "popularity": {"zipf": one_of(draw, 0.0, 0.9)},
                "duration": f"{requests * 1000 // rate}ms",
            },
            "network": {
                "control": one_of(draw, "0ms", "0.1ms", "1ms"),
                "data": one_of(draw, "0ms", "50us"),
                "response": one_of(draw, "0ms", "2ms"),
            },
            "preemption": {"cost": one_of(draw, "0ms", "1ms")},
            "profiling": {"share": 0.3, "delay": "50ms", "history": one_of(draw, 0, 200)},
            "seed": seed,
        }
    )


def _served(draw: Random, dynamic: bool) -> dict[str, Any]:
    if dynamic:
        times = {
            "short": {"share": 0.7, "time": {"normal": {"mean": "6ms", "std": "1ms"}}},
            "long": {"share": 0.3, "time": {"lognormal": {"median": "15ms", "sigma": 0.3}}},
        }
        profile: dict[str, Any] = {
            "dynamic": {
                "applications": times,
                "c0": "2ms",
                "c1": 0.3,
                "estimate": one_of(draw, "p99", "mean"),
            }
        }
        return {"profile": profile, "slo": f"{draw.randint(60, 200)}ms", "max_batch": 16}
    alpha = draw.randint(300, 3000)
    beta = draw.randint(1000, 8000)
    slo = (alpha + beta) * draw.randint(20, 80) // 10
    profile = {"alpha": f"{alpha}us", "beta": f"{beta}us"}
    return {"profile": profile, "slo": f"{slo}us", "max_batch": one_of(draw, 8, 64)}


def unsteady_serving() -> Case:
    """GPUs that leave and come back while batches run, and take less or more than was believed."""
    gone = (
        (0.05, GpuLeft(1)),
        (0.12, GpuJoined(1)),
        (0.15, GpuLeft(0)),
        (0.2, GpuLeft(2)),
        (0.25, GpuJoined(0)),
    )
    case = crowd(models=3, gpus=3, requests=300)
    events = tuple((int(at * SECOND), event) for at, event in gone)
    return with_truth(Case(case.setup, case.requests, events), [100, 90, 130])


# jobs on one GPU, and kernels


def jobs_example() -> JobScenario:
    found = levels.load(EXAMPLES / "jobs.yaml", SEED)
    assert isinstance(found, JobScenario)
    return found


def drawn_jobs(seed: int) -> JobScenario:
    """Some of Salus's, which are drawn by the package."""
    return parse_jobs(
        {
            "gpu": {"memory": "16GB", "switch": "2ms", "overhead": 0.02, "pause": "5ms", "turn": "20s"},
            "jobs": {"salus": 25, "interval": "60s"},
            "policy": {"name": "fair"},
            "seed": seed,
        }
    )


def random_jobs(seed: int) -> JobScenario:
    """Fifteen, of which now and then one is larger than the GPU."""
    draw = Random(f"jobs {seed}")
    gpu = {
        "memory": "12GB",
        "switch": one_of(draw, "0ms", "3ms"),
        "overhead": one_of(draw, 0.0, 0.05),
        "pause": one_of(draw, "0ms", "7ms"),
        "turn": "0ms",
    }
    jobs = [_job(draw, place) for place in range(15)]
    return parse_jobs({"gpu": gpu, "jobs": jobs, "policy": {"name": "fair"}, "seed": seed})


def _job(draw: Random, place: int) -> dict[str, Any]:
    return {
        "name": f"job{place}",
        "persistent": f"{draw.randint(50, 2000)}MB",
        "ephemeral": f"{draw.randint(200, 10500)}MB",
        "iteration": f"{draw.randint(10, 300)}ms",
        "iterations": draw.randint(5, 40),
        "demand": one_of(draw, 0.3, 0.6, 1.0),
        "arrival": f"{draw.randint(0, 20000)}ms",
        "priority": draw.randint(0, 3),
    }


def random_parties(seed: int) -> list[Party]:
    """A client with requests, and others that train as fast as they may."""
    draw = Random(f"kernels {seed}")
    arrivals = np.cumsum([draw.randint(1, 8) * MILLISECOND for _ in range(40)])
    asked = Party("asked", _kernels(draw, 30, 60), True, arrivals, graph=seed % 2 == 0)
    trained = [Party(f"trained{n}", _kernels(draw, 60, 400), False) for n in range(1 + seed % 2)]
    return [asked, *trained]


def _kernels(draw: Random, count: int, longest: int) -> KernelTrace:
    """*longest* is in microseconds. The last fifth is the update."""
    kernels = tuple(
        KernelProfile(
            f"kernel{place}",
            draw.randint(3, longest) * MICROSECOND,
            draw.randint(1, 80),
            one_of(draw, "compute", "memory", "unknown", "copy"),
        )
        for place in range(count)
    )
    phases = tuple("forward" if 5 * place < 4 * count else "update" for place in range(count))
    return KernelTrace("a GPU", 80, kernels, tuple(range(count)), phases)


# searches


def tuned_example(name: str) -> TuningScenario:
    return load_tuning(EXAMPLES / "tuning" / f"{name}.yaml", SEED)


def tuned_searches(name: str) -> dict[str, TuningScenario]:
    """With other searches than its own; but known tasks have large grids."""
    own = tuned_example(name)
    home = EXAMPLES / "tuning" / name
    others = {search: how for search, how in SEARCHES.items() if search not in (own.search.name, "grid")}
    return {search: parse_tuning({**own.raw, "search": how}, home) for search, how in others.items()}


SEARCHES: dict[str, dict[str, Any]] = {
    "asha": {"name": "asha", "candidates": 18, "iterations": 9, "eta": 3, "smallest": 1, "concurrency": 6},
    "bohb": {"name": "bohb", "iterations": 9, "eta": 3, "passes": 1, "concurrency": 6},
    "grid": {"name": "grid", "iterations": 4},
    "hyperband": {"name": "hyperband", "iterations": 9, "eta": 3, "passes": 2, "brackets_at_once": 2},
    "pbt": {"name": "pbt", "population": 8, "iterations": 12, "interval": 3, "replaced": 0.25, "seed": 1},
    "random": {"name": "random", "candidates": 16, "iterations": 6},
    "successive-halving": {
        "name": "successive-halving", "candidates": 18, "iterations": 9, "eta": 3, "smallest": 1
    },
    "sync-bohb": {"name": "sync-bohb", "iterations": 9, "eta": 3, "passes": 2},
}  # fmt: skip


def random_searches(seed: int) -> dict[str, TuningScenario]:
    return {search: random_tuning(seed, search) for search in SEARCHES}


def random_tuning(seed: int, search: str) -> TuningScenario:
    draw = Random(f"tuning {seed}")
    task = {
        "iteration": f"{draw.randint(200, 20000)}ms",
        "start": 0.1,
        "reach": one_of(draw, 0.9, 0.01),
        "patience": draw.randint(2, 8),
        "noise": 0.01,
        "spread": one_of(draw, 0.0, 0.3),
        "packing": one_of(draw, 1.05, 1.3, 1.8),
        "scaling": one_of(draw, 1.05, 1.2, 1.6),
        "knobs": {
            "rate": {"best": draw.randint(2, 8) / 10, "weight": 2.0, "slower": 1.0},
            "size": {"best": 0.7, "weight": 0.3, "slower": one_of(draw, 0.5, 2.0)},
        },
    }
    return parse_tuning(
        {
            "task": task,
            "space": {"rate": {"low": 0.001, "high": 1.0, "log": True}, "size": {"options": [8, 16, 32]}},
            "search": SEARCHES[search],
            "gpus": draw.randint(2, 8),
            "policy": {"name": "fifo"},
            "seed": seed,
            "costs": {"starting": "500ms", "moving": one_of(draw, "0s", "2s", "10s"), "profile": seed % 3},
        }
    )


# clusters


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


# placement


def planned_example() -> Scenario:
    return load(EXAMPLES / "planning" / "plan.yaml", [*SEED, "workload.duration=3s"], planning=True)


def random_problem(seed: int) -> Problem:
    """Models of different sizes, rates and objectives, most of which fit, with requests to plan with."""
    draw = Random(f"placement {seed}")
    models = tuple(
        model(
            index,
            alone=draw.randint(4, 30) * MILLISECOND,
            each=draw.randint(1, 8) * MILLISECOND,
            slo=draw.randint(60, 300) * MILLISECOND,
            rate=float(draw.randint(1, 15)),
            weights=draw.randint(500, 6000) * MIB,
            activations=draw.randint(0, 40) * MIB,
            shapes=one_of(draw, (ALONE,), (ALONE, *SPREAD)),
            use=one_of(draw, 0.05, 0.2, 0.45),
        )
        for index in range(6)
    )
    return Problem(models, gpus(4), _requests(draw, [each.rate for each in models]))


def measured_problem(seed: int) -> Problem:
    """Models that were measured on a V100, by iGniter too."""
    draw = Random(f"measured {seed}")
    slo = draw.randint(60, 200) * MILLISECOND
    models = tuple(
        placed_model(index, name, float(draw.randint(20, 120)), slo) for index, name in enumerate(MEASURED)
    )
    requests = _requests(draw, [each.rate for each in models], 5)
    known, _ = interference_named("igniter")
    return known(Problem(models, v100s(draw.randint(2, 4)), requests))


def _requests(draw: Random, rates: list[float], seconds: int = 20) -> PlacementRequests:
    found = [
        (draw.randrange(seconds * SECOND), index)
        for index, rate in enumerate(rates)
        for _ in range(int(rate * seconds))
    ]
    times, models = zip(*sorted(found), strict=True)
    return PlacementRequests(times, models)
