"""The bridge to the native twin: the same setup, truth and arrivals as arrays, the same record back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from astrarium.core.native import extension
from astrarium.core.profiles import Dynamic
from astrarium.core.units import Time
from astrarium.scenario import Scenario, build
from astrarium.serving.record import Batches, Ints, Requests, ServingRecord
from astrarium.serving.setup import Setup
from astrarium.serving.twin import has_twin as has_twin
from astrarium.serving.twin import native_setup
from astrarium.workloads.arrivals import Arrivals


def simulate(
    scenario: Scenario,
    setup: Setup,
    policy: Any,
    arrivals: Arrivals,
    progress: Callable[[Time], None] | None = None,
) -> ServingRecord:
    deadlines = build.deadlines(arrivals, setup)
    columns = _call(scenario, setup, policy, arrivals, deadlines, [], progress)
    requests = Requests(
        arrival=arrivals.time,
        deadline=deadlines,
        model=arrivals.model,
        application=arrivals.application,
        **{name: columns[name] for name in ("outcome", "reason", "done", "batch")},
    )
    names = ("model", "gpu", "size", "dispatched", "started", "finished", "fate")
    return ServingRecord(
        policy=scenario.policy.name,
        setup=setup,
        seed=scenario.seed,
        requests=requests,
        batches=Batches(**{name: columns[f"batch_{name}"] for name in names}),
        reasons=tuple(columns["reasons"]),
        warmup=scenario.workload.warmup,
        duration=scenario.duration,
        engine="native",
    )


def timed_columns(scenario: Scenario) -> Any:
    """A run's columns, with `decision_at` and `decision_ns` of each decision that dispatched something."""
    setup, arrivals = build.setup(scenario), build.arrivals(scenario)
    policy, deadlines = build.policy(scenario, setup), build.deadlines(arrivals, setup)
    return _call(scenario, setup, policy, arrivals, deadlines, [], timed=True)


def worst_bad(
    scenario: Scenario,
    setup: Setup,
    policy: Any,
    arrivals: Arrivals,
    allowed: float,
    progress: Callable[[Time], None] | None = None,
) -> float:
    """The largest share of bad requests of any model, or just over *allowed* as soon as that is certain."""
    deadlines = build.deadlines(arrivals, setup)
    measured = arrivals.time >= scenario.workload.warmup
    totals = np.bincount(arrivals.model[measured], minlength=len(setup.models))
    limits = np.floor(totals * allowed).astype(int).tolist()
    columns = _call(scenario, setup, policy, arrivals, deadlines, limits, progress)
    return worst_share(columns["bad"], totals)


def worst_share(bad: Ints, totals: Ints) -> float:
    """Over the models; a run in which nothing was measured at all proves nothing, and counts as bad."""
    return float(np.max(bad / np.maximum(totals, 1))) if totals.any() else 1.0


def _call(
    scenario: Scenario,
    setup: Setup,
    policy: Any,
    arrivals: Arrivals,
    deadlines: Ints,
    bad_limits: list[int],
    progress: Callable[[Time], None] | None = None,
    timed: bool = False,
) -> Any:
    module = extension("_native")
    assert module is not None
    columns = module.simulate_serving(
        native_setup(module, setup),
        truth_for(module, scenario, setup),
        module.Parameters(policy.native, *policy.native_parameters()),
        arrivals.time,
        deadlines,
        arrivals.model,
        arrivals.work,
        scenario.workload.warmup,
        bad_limits,
        progress,
        arrivals.application,
        arrivals.profiled,
        scenario.profiling.delay,
        timed,
    )
    columns["reasons"] = module.reasons()
    return columns


def truth_for(module: Any, scenario: Scenario, setup: Setup) -> Any:
    kind_of_gpu, tables = build.truth_tables(scenario, setup)
    dynamic = [
        (int(model.profile.c0), model.profile.c1) if isinstance(model.profile, Dynamic) else None
        for model in scenario.models.values()
    ]
    return module.Truth(
        kind_of_gpu,
        tables,
        [int(terms is not None) for terms in dynamic],
        [terms[0] if terms else 0 for terms in dynamic],
        [terms[1] if terms else 0.0 for terms in dynamic],
    )
