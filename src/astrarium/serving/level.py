"""Requests on GPUs, as a level."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from astrarium.core.arrivals import Arrivals
from astrarium.core.engine import Engine
from astrarium.core.level import Level, Simulation, Watching
from astrarium.core.quantities import Time
from astrarium.run.experiment import EngineName, Progress, recorded
from astrarium.serving.contract import Action, Event, Request, RequestArrived, Setup
from astrarium.serving.policies import serving_policies
from astrarium.serving.record import ServingRecord, batches_of, requests_of
from astrarium.serving.record import recorded as made_record
from astrarium.serving.report import files as report
from astrarium.serving.report.summary import summarize
from astrarium.serving.scenario import Scenario, build, parse
from astrarium.serving.scenario.models import written_out
from astrarium.serving.scenario.schema import DEFAULT_POLICY
from astrarium.serving.state import ServingState
from astrarium.serving.twin import simulation
from astrarium.serving.twin.native import has_twin
from astrarium.serving.world import ServingWorld


def run(
    scenario: Scenario,
    engine: EngineName = "auto",
    progress: Progress | None = None,
    watching: Watching | None = None,
) -> ServingRecord:
    """Simulate on the native twin where the policy has one, else (or where somebody watches) in Python."""
    return recorded(LEVEL, scenario, None, engine, lambda length: nullcontext(progress), watching)


def serve(
    scenario: Scenario,
    setup: Setup,
    arrivals: Arrivals,
    engine: EngineName = "auto",
    progress: Progress | None = None,
) -> ServingRecord:
    """Simulate these arrivals, with the scenario's policy."""
    level = replace(
        LEVEL,
        prepare=lambda scenario, policy, watching: prepared(scenario, setup, policy, arrivals, watching),
        twin=lambda scenario, policy, progress: by_twin(scenario, policy, progress, setup, arrivals),
    )
    policy = build.policy(scenario, setup)
    return recorded(level, scenario, policy, engine, lambda length: nullcontext(progress))


def prepared(
    scenario: Scenario, setup: Setup, policy: Any, arrivals: Arrivals, watching: Watching
) -> Simulation[ServingRecord]:
    """Make the books and the world of a scenario for these arrivals."""
    deadlines = build.deadlines(arrivals, setup)
    state = ServingState(setup)
    truth = build.truth(scenario, setup, arrivals)
    profiler = build.profiler(scenario, arrivals, policy)

    def record(end: Time) -> ServingRecord:
        ledger = state.ledger
        requests = requests_of(ledger, arrivals, deadlines)
        return made_record(scenario, setup, requests, batches_of(ledger), ledger.reasons, "python")

    return Simulation(
        Engine(state, policy, watching.validate, watching.trace),
        events(arrivals, setup),
        ServingWorld(setup, truth, profiler),
        record,
        scenario.length,
    )


def prepare(scenario: Scenario, policy: Any, watching: Watching) -> Simulation[ServingRecord]:
    """Make the books, the world and the arrivals of a scenario."""
    took = Stopwatch()
    ready = prepared(scenario, build.setup(scenario), policy, build.arrivals(scenario), watching)
    return replace(ready, record=lambda end: took.by(ready.record(end)))


def by_twin(
    scenario: Scenario,
    policy: Any,
    progress: Progress | None,
    setup: Setup | None = None,
    arrivals: Arrivals | None = None,
) -> ServingRecord | None:
    """Simulate on the native twin, where the policy has one."""
    if not has_twin(policy):
        return None
    took = Stopwatch()
    setup = build.setup(scenario) if setup is None else setup
    arrivals = build.arrivals(scenario) if arrivals is None else arrivals
    return took.by(simulation.simulate(scenario, setup, policy, arrivals, progress))


def events(arrivals: Arrivals, setup: Setup) -> Iterator[tuple[Time, RequestArrived]]:
    """Yield arrivals one by one, made in blocks so that a long run needs no list of everything."""
    deadlines = build.deadlines(arrivals, setup)
    buckets = build.buckets(arrivals, setup)
    for first in range(0, len(arrivals), _BLOCK):
        block = slice(first, first + _BLOCK)
        rows = zip(
            arrivals.time[block].tolist(),
            arrivals.model[block].tolist(),
            deadlines[block].tolist(),
            arrivals.application[block].tolist(),
            arrivals.length[block].tolist(),
            buckets[block].tolist(),
            strict=True,
        )
        for id_, (at, model, deadline, application, length, bucket) in enumerate(rows, first):
            yield at, RequestArrived(Request(id_, model, at, deadline, application, length, bucket))


_BLOCK = 65_536


class Stopwatch:
    """A stopwatch tells a record how long it took since the stopwatch was made."""

    def __init__(self) -> None:
        self._wall = time.perf_counter()
        self._cpu = time.process_time()

    def by(self, record: ServingRecord) -> ServingRecord:
        wall = time.perf_counter() - self._wall
        cpu = time.process_time() - self._cpu
        return replace(record, wall_s=wall, cpu_s=cpu)


LEVEL: Level[Scenario, ServingRecord] = Level(
    name="serving",
    subject="requests to models",
    item="request",
    scenario=Scenario,
    events=Event,
    actions=Action,
    policies=serving_policies,
    default=DEFAULT_POLICY,
    parse=lambda raw, path: parse(raw, base=path.parent),
    prepare=prepare,
    replayed=lambda scenario, policy: Engine(ServingState(build.setup(scenario)), policy),
    policy_arguments=lambda scenario: (build.setup(scenario),),
    policy_made=build.made_policy,
    twin=by_twin,
    length=lambda scenario: scenario.length,
    summarize=lambda scenario, record: summarize(record),
    report=report,
    picture="overview.png",
    title=report.title,
    named={"models": written_out},
)
