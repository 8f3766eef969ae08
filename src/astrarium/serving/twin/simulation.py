"""A native simulation takes a scenario's setup, truth and arrivals as arrays, and returns the same record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from astrarium.core.arrivals import Arrivals
from astrarium.core.optional import extension
from astrarium.core.profiles import ByLength, Dynamic, Profile
from astrarium.core.quantities import Time
from astrarium.run.experiment import Progress
from astrarium.serving.contract import Setup
from astrarium.serving.policies.alike import AlikePolicy
from astrarium.serving.record import BATCHES, Batches, Ints, Requests, ServingRecord, recorded
from astrarium.serving.scenario import Scenario, build
from astrarium.serving.twin.native import native_setup


def simulate(
    scenario: Scenario, setup: Setup, policy: Any, arrivals: Arrivals, progress: Progress | None = None
) -> ServingRecord:
    shown = _shown(setup, policy, arrivals)
    columns = _call(scenario, shown, [], progress)
    columns["batch_model"] = np.array(shown.models, np.int32)[columns["batch_model"]]
    requests = Requests(
        arrival=arrivals.time,
        deadline=columns["deadline"],
        model=arrivals.model,
        application=arrivals.application,
        length=arrivals.length,
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
    shown = _shown(setup, policy, arrivals)
    limits = np.floor(totals * allowed).astype(int)[shown.models].tolist()
    bad = _call(scenario, shown, limits, progress)["bad"]
    return worst_share(np.bincount(shown.models, bad, len(setup.models)).astype(np.int64), totals)


def worst_share(bad: Ints, totals: Ints) -> float:
    """Return the largest share of bad requests of any model; a run that measured nothing counts as bad."""
    return float(np.max(bad / np.maximum(totals, 1))) if totals.any() else 1.0


class Shown(NamedTuple):
    """A policy is shown this setup and these arrivals; of each model there, `models` has the true one."""

    policy: Any
    setup: Setup
    arrivals: Arrivals
    models: list[int]


def _shown(setup: Setup, policy: Any, arrivals: Arrivals) -> Shown:
    if not isinstance(policy, AlikePolicy):
        return Shown(policy, setup, arrivals, list(range(len(setup.models))))
    division = policy.division
    most = max(map(len, division.places))
    places = np.array([own + own[-1:] * (most - len(own)) for own in division.places], np.int32)
    model = places[arrivals.model, build.buckets(arrivals, setup)]
    return Shown(policy.policy, division.setup, replace(arrivals, model=model), division.models)


def _call(scenario: Scenario, shown: Shown, bad_limits: list[int], progress: Progress | None = None) -> Any:
    policy, setup, arrivals, models = shown
    module = extension("_simulator")
    deadlines = build.deadlines(arrivals, setup)
    assert module is not None
    columns = module.simulate_serving(
        native_setup(module, setup),
        truth_for(module, scenario, setup, models),
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


def truth_for(module: Any, scenario: Scenario, setup: Setup, models: Sequence[int] | None = None) -> Any:
    """Return what batches really take, for each model of the setup; *models* are the true ones of those."""
    kind_of_gpu, tables = build.truth_tables(scenario, setup)
    true = list(scenario.models.values())
    profiles = [one.profile for one in (true if models is None else [true[place] for place in models])]
    dynamic = [
        (int(profile.c0), profile.c1) if isinstance(profile, Dynamic) else None for profile in profiles
    ]
    return module.Truth(
        kind_of_gpu,
        [_tables(of_kind, setup, models) for of_kind in tables],
        [int(terms is not None) for terms in dynamic],
        [terms[0] if terms else 0 for terms in dynamic],
        [terms[1] if terms else 0.0 for terms in dynamic],
        _by_length(module, scenario, profiles) if scenario.has_lengths else [],
    )


def _tables(
    tables: Sequence[tuple[Time, ...]], setup: Setup, models: Sequence[int] | None
) -> list[tuple[Time, ...]]:
    """Return a table for each model of the setup; nobody asks for that of one that has lengths."""
    if models is None:
        return list(tables)
    shown = zip(setup.models, models, strict=True)
    return [model.latency if model.lengths else tables[true] for model, true in shown]


def _by_length(module: Any, scenario: Scenario, profiles: Sequence[Profile]) -> list[list[Any]]:
    """Return by kind of GPU and model what really takes how long, where a model has lengths."""
    kinds = scenario.cluster.kinds
    known = {id(profile): profile for profile in profiles}  # many models may be parts of one
    made = [{key: _profile(module, one.on(kind)) for key, one in known.items()} for kind in kinds]
    return [[on_kind[id(profile)] for profile in profiles] for on_kind in made]


def _profile(module: Any, profile: Profile) -> Any:
    if not isinstance(profile, ByLength):
        return None
    rows = [profile.times(length) for length in profile.lengths]
    return module.ByLength(list(profile.lengths), rows, profile.rounded, profile.together)
