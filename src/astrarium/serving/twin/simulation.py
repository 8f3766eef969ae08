"""A native simulation takes a scenario's setup, truth and arrivals as arrays, and returns the same record."""

from __future__ import annotations

from typing import Any

import numpy as np

from astrarium.core.arrivals import Arrivals
from astrarium.core.optional import extension
from astrarium.core.profiles import ByLength, Dynamic, Profile
from astrarium.run.experiment import Progress
from astrarium.serving.contract import Setup
from astrarium.serving.record import BATCHES, Batches, Ints, Requests, ServingRecord, recorded
from astrarium.serving.scenario import Scenario, build
from astrarium.serving.twin.native import native_setup


def simulate(
    scenario: Scenario, setup: Setup, policy: Any, arrivals: Arrivals, progress: Progress | None = None
) -> ServingRecord:
    columns = _call(scenario, setup, policy, arrivals, [], progress)
    requests = Requests(
        arrival=arrivals.time,
        deadline=columns["deadline"],
        model=arrivals.model,
        application=arrivals.application,
        **{name: columns[name] for name in ("outcome", "reason", "done", "batch")},
    )
    batches = Batches(**{name: columns[f"batch_{name}"] for name in BATCHES})
    return recorded(scenario, setup, requests, batches, columns["reasons"], "native")


def worst_bad(
    scenario: Scenario,
    setup: Setup,
    policy: Any,
    arrivals: Arrivals,
    allowed: float,
    progress: Progress | None = None,
) -> float:
    """Return the largest share of bad requests of any model, or just over *allowed* once that is certain."""
    measured = arrivals.time >= scenario.workload.warmup
    totals = np.bincount(arrivals.model[measured], minlength=len(setup.models))
    limits = np.floor(totals * allowed).astype(int).tolist()
    columns = _call(scenario, setup, policy, arrivals, limits, progress)
    return worst_share(columns["bad"], totals)


def worst_share(bad: Ints, totals: Ints) -> float:
    """Return the largest share of bad requests of any model; a run that measured nothing counts as bad."""
    return float(np.max(bad / np.maximum(totals, 1))) if totals.any() else 1.0


def _call(
    scenario: Scenario,
    setup: Setup,
    policy: Any,
    arrivals: Arrivals,
    bad_limits: list[int],
    progress: Progress | None = None,
) -> Any:
    module = extension("_simulator")
    deadlines = build.deadlines(arrivals, setup)
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
        arrivals.length,
        build.buckets(arrivals, setup),
    )
    columns |= {"reasons": module.reasons(), "deadline": deadlines}
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
        _by_length(module, scenario) if scenario.has_lengths else [],
    )


def _by_length(module: Any, scenario: Scenario) -> list[list[Any]]:
    """Return by kind of GPU and model what really takes how long, where a model has lengths."""
    kinds = scenario.cluster.kinds
    models = scenario.models.values()
    return [[_profile(module, model.profile.on(kind)) for model in models] for kind in kinds]


def _profile(module: Any, profile: Profile) -> Any:
    if not isinstance(profile, ByLength):
        return None
    rows = [profile.times(length) for length in profile.lengths]
    return module.ByLength(list(profile.lengths), rows, profile.rounded, module.Together[profile.together])
