"""What serving policies decide: on the examples, shortened, on random scenarios, and with GPUs that leave."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from random import Random
from typing import Any

import msgspec

from astrarium.core.choice import parameters_of
from astrarium.core.level import Watching
from astrarium.core.quantities import SECOND, Duration
from astrarium.core.trace import Step
from astrarium.run.experiment import recorded
from astrarium.serving.contract import GpuJoined, GpuLeft
from astrarium.serving.level import LEVEL as SERVING
from astrarium.serving.level import run as run_serving
from astrarium.serving.policies import serving_policies
from astrarium.serving.record import ServingRecord
from astrarium.serving.scenario import Scenario, build, load, parse
from astrarium.serving.twin.live import LiveTwin, faster
from astrarium.serving.twin.native import has_twin
from astrarium.testing.serving.cases import Case as ServingCase
from astrarium.testing.serving.cases import crowd, with_truth
from tests.support.cases import run_case
from tests.support.decisions.digests import Case, Parameters, Rows, Runs, decided, variants
from tests.support.decisions.scenarios import EXAMPLES, SEED, one_of

SERVED = ["bursty", "changing", "cold_start", "drift", "dynamic", "heterogeneous", "lengths", "quickstart",
          "serve", "trace", "zoo"]  # fmt: skip


def served_example(name: str, requests: int = 500) -> Scenario:
    """The first so many requests of it, about."""
    scenario = load(EXAMPLES / f"{name}.yaml", SEED)
    if scenario.workload.arrivals == "trace":
        return scenario
    end = int(min(scenario.duration, requests * SECOND / scenario.total_rate))
    changes = tuple(
        msgspec.structs.replace(change, at=Duration(change.at * end // scenario.duration))
        for change in scenario.workload.changes
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


def random_lengths(seed: int, requests: int = 400) -> Scenario:
    """Texts by length, images by height and width, and a model whose requests are all alike."""
    draw = Random(f"lengths {seed}")
    machines = draw.randint(1, 3)
    rate = draw.randint(500, 1000) * machines
    of_texts = {"rounded": True, "together": ("padded", "bucket", "length")[seed - 1]}
    images = [f"{high}x{wide}" for high in (64, 256) for wide in (64, 256)]
    models = {
        "texts": _with_lengths(draw, [16, 64, 256], **of_texts),
        "images": _with_lengths(draw, images),
        "alike": _served(draw, False),
    }
    return parse(
        {
            "cluster": {"gpus": machines},
            "models": models,
            "policy": {"name": "eager"},
            "workload": {
                "arrivals": "gamma",
                "shape": one_of(draw, 0.3, 1.0),
                "rate": f"{rate}/s",
                "duration": f"{requests * 1000 // rate}ms",
                "lengths": {
                    "texts": {"weights": {12: 5, 16: 2, 60: 3, 200: 1}},
                    "images": {"weights": {"60x64": 5, "64x64": 3, "64x200": 2, "256x100": 1}},
                },
            },
            "network": {"control": one_of(draw, "0ms", "0.1ms")},
            "seed": seed,
        }
    )


def _with_lengths(draw: Random, longest: list[Any], **more: Any) -> dict[str, Any]:
    """A model whose batches take a launch, and more the later their longest request is in the list."""
    beta = draw.randint(1000, 4000)
    tables = {
        length: {1: f"{beta + 300 * place}us", 8: f"{beta + 2500 * (1 + place)}us"}
        for place, length in enumerate(longest)
    }
    return {"profile": {**more, "lengths": tables}, "slo": f"{draw.randint(30, 90)}ms", "max_batch": 8}


def unsteady_serving() -> ServingCase:
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
    return with_truth(ServingCase(case.setup, case.requests, events), [100, 90, 130])


OTHER_SERVING: list[tuple[str, Parameters]] = [
    ("astrarium", {"prefer": "few-gpus"}),
    ("astrarium", {"lookahead": False}),
    ("clipper", {"latency": "total"}),
    ("clockwork", {"sizes": "powers_of_two"}),
    ("deferred", {"gather": "fcfs"}),
    ("eager", {"gather": "fcfs"}),
    ("nexus", {"epoch": "300ms", "spread": False}),
    ("orloj", {"members": "own"}),
    ("shepherd", {"preempt": False}),
    ("timeout", {"timeout": "3ms", "gather": "fcfs"}),
]


OTHER_WITH_LENGTHS: list[tuple[str, Parameters]] = [
    ("astrarium", {"lookahead": False}),
    ("eager", {"batches": "alike"}),
    ("turbo", {"trigger": "lazy"}),
]


def serving(scenario: Scenario, others: Iterable[tuple[str, Parameters]] = ()) -> Runs:
    """The scenario's own policy keeps its parameters."""
    for label, (name, parameters) in variants(serving_policies.names(), others).items():
        own = scenario.policy.name == name and not parameters
        chosen = scenario if own else scenario.with_policy(name, **parameters)
        policy = build.policy(chosen, build.setup(chosen))
        yield label, "python", decided(serving_steps(chosen))
        if has_twin(policy):
            yield label, "native", batches_and_requests(run_serving(chosen, "native"))
            if getattr(policy, "live_twin", False):
                yield label, "live-twin", decided(serving_steps(chosen, live_twin=True))


def serving_steps(scenario: Scenario, live_twin: bool = False) -> list[Step]:
    setup = build.setup(scenario)
    steps = list[Step]()
    policy = build.policy(scenario, setup)
    chosen = faster(policy, setup) if live_twin else policy
    assert isinstance(chosen, LiveTwin) is live_twin
    recorded(SERVING, scenario, chosen, "python", watching=Watching(trace=steps.append))
    return steps


def batches_and_requests(record: ServingRecord) -> Rows:
    sent = record.batches
    ended = record.requests
    columns = (sent.dispatched, sent.started, sent.finished, sent.gpu, sent.model, sent.size, sent.fate)
    rows: Rows = [["batch", *map(int, row)] for row in zip(*columns, strict=True)]
    for done, batch, outcome, reason in zip(
        ended.done, ended.batch, ended.outcome, ended.reason, strict=True
    ):
        rows.append(["request", int(done), int(batch), int(outcome), record.reasons[reason]])
    return rows


def unsteady(case: ServingCase) -> Runs:
    for name in serving_policies.names():
        factory = serving_policies.get(name)
        policy = factory(case.setup, parameters_of(factory)())
        yield name, "python", decided(run_case(case, policy).steps)
        twin = faster(policy, case.setup)
        if twin is not policy:
            yield name, "live-twin", decided(run_case(case, twin).steps)


def cases() -> Iterator[Case]:
    for name in SERVED:
        yield Case("serving", name, serving, partial(served_example, name))
    for seed in range(1, 19):
        varied = partial(serving, others=OTHER_SERVING)
        yield Case("serving", f"random-{seed}", varied, partial(random_serving, seed), seed > 6)
    for seed in range(1, 4):  # one for each way in which texts share runs
        varied = partial(serving, others=OTHER_WITH_LENGTHS)
        yield Case("serving", f"by-length-{seed}", varied, partial(random_lengths, seed), seed > 1)
    yield Case("serving", "unsteady", unsteady, unsteady_serving)
    # As far as the first change of its times.
    yield Case("serving", "drift-longer", serving, partial(served_example, "drift", 4200), True)
