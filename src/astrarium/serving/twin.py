"""A policy's native twin can decide on the wall clock too: the same decisions, a few times sooner.

Only the deciding is native. The books stay where they are, so that recordings, replays, GPUs that leave and
join and everything else work as with the policy itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from astrarium.core.arrivals import Arrivals
from astrarium.core.optional import extension
from astrarium.core.policy import SetTimer
from astrarium.core.profiles import Dynamic
from astrarium.run.experiment import Progress
from astrarium.serving import contract
from astrarium.serving.contract import Action, Event, ModelSpec, Setup
from astrarium.serving.policies import ServingPolicy, listens_to_profiler
from astrarium.serving.record import BATCHES, Batches, Ints, Requests, ServingRecord, recorded
from astrarium.serving.scenario import Scenario, build
from astrarium.serving.state import ServingState


def has_twin(policy: Any) -> bool:
    """Whether a policy has a native twin: it is named in `native`, with `native_parameters()`."""
    named = type(policy).__dict__.get("native", "")  # not inherited: a subclass decides otherwise
    return bool(named) and extension("_native") is not None


def native_setup(module: Any, setup: Setup) -> Any:
    network = module.Network(setup.network.control, setup.network.data, setup.network.response)
    models = [_model(module, model) for model in setup.models]
    return module.Setup(models, len(setup.gpus), network, setup.preemption_cost)


def _model(module: Any, model: ModelSpec) -> Any:
    known = model.dynamic
    if known is None:
        return module.Model(model.slo, model.latency)
    return module.Model(model.slo, model.latency, module.Dynamic(known.c0, known.c1, known.history))


def faster(policy: ServingPolicy, setup: Setup) -> ServingPolicy:
    """Return the twin where it can decide live, else the policy itself."""
    return LiveTwin(policy, setup) if getattr(policy, "live_twin", "") and has_twin(policy) else policy


# As in native/policies/books.h.
_FINISHED, _PREEMPTED, _PROFILED, _FAILED, _JOINED, _LEFT = range(6)


def _told(event: Event) -> tuple[int, int, int, int, int] | None:
    """Return an event that is no arrival as the twin hears it."""
    match event:
        case contract.BatchFinished(gpu, run, started, ended):
            return _FINISHED, gpu, run, started, ended
        case contract.BatchPreempted(gpu, run, started, stopped):
            return _PREEMPTED, gpu, run, started, stopped
        case contract.RequestProfiled(_, model, application, time):
            return _PROFILED, model, application, time, 0
        case contract.BatchFailed(gpu, run, _):
            return _FAILED, gpu, run, 0, 0
        case contract.GpuJoined(gpu):
            return _JOINED, gpu, 0, 0, 0
        case contract.GpuLeft(gpu):
            return _LEFT, gpu, 0, 0, 0
    return None


class LiveTwin:
    def __init__(self, policy: Any, setup: Setup) -> None:
        module = extension("_native")
        assert module is not None
        self.parameters = module.Parameters(policy.native, *policy.native_parameters())
        self._native = module.LivePolicy(native_setup(module, setup), self.parameters)
        self._reasons = module.reasons()
        self._timer = policy.live_twin
        self.listens_to_profiler = listens_to_profiler(policy)

    def decide(self, now: int, events: Sequence[Event], state: ServingState) -> list[Action]:
        arrivals = []
        others = []
        for event in events:
            if type(event) is contract.RequestArrived:
                one = event.request
                arrivals.append((one.id, one.model, one.arrival, one.deadline, one.application))
            elif told := _told(event):
                others.append(told)
        return [self._action(*decision) for decision in self._native.decide(now, arrivals, others)]

    def _action(self, kind: int, first: int, second: Any, third: int) -> Action:
        if kind == 0:
            return contract.Dispatch(first, second, third)
        return contract.Drop(first, self._reasons[second]) if kind == 1 else SetTimer(first, self._timer)


# The bridge to the native twin: the same setup, truth and arrivals as arrays, the same record back.


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


def timed_columns(scenario: Scenario) -> Any:
    """Return a run's columns, with `decision_at` and `decision_ns` of each decision that dispatched."""
    setup = build.setup(scenario)
    arrivals = build.arrivals(scenario)
    return _call(scenario, setup, build.policy(scenario, setup), arrivals, [], timed=True)


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
    timed: bool = False,
) -> Any:
    module = extension("_native")
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
        timed,
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
    )
