"""Requests on GPUs, as a level."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Literal

from astrarium.core.engine import Engine
from astrarium.core.errors import InputError
from astrarium.core.level import Level, Report, Simulation, Watching
from astrarium.core.processes import Arrivals
from astrarium.core.trace import Step
from astrarium.core.units import Time
from astrarium.run.simulate import simulate
from astrarium.serving import twin as native
from astrarium.serving.contract import Action, Event, Request, RequestArrived, Setup
from astrarium.serving.policies import serving_policies
from astrarium.serving.record import Ints, ServingRecord, batches_of, requests_of
from astrarium.serving.report import files as report
from astrarium.serving.scenario import Scenario, build, parse
from astrarium.serving.scenario.models import written_out
from astrarium.serving.scenario.schema import DEFAULT_POLICY
from astrarium.serving.state import ServingState
from astrarium.serving.world import ServingWorld

EngineName = Literal["auto", "python", "native"]


def run(
    scenario: Scenario,
    engine: EngineName = "auto",
    progress: Callable[[Time], None] | None = None,
    trace: Callable[[Step], None] | None = None,
    validate: bool = False,
) -> ServingRecord:
    """Simulate on the native twin where the policy has one, else (or with a trace) on the reference."""
    wall, cpu = time.perf_counter(), time.process_time()
    setup = build.setup(scenario)
    record = serve(scenario, setup, build.arrivals(scenario), engine, progress, trace, validate)
    return timed(record, time.perf_counter() - wall, time.process_time() - cpu)


def serve(
    scenario: Scenario,
    setup: Setup,
    arrivals: Arrivals,
    engine: EngineName = "auto",
    progress: Callable[[Time], None] | None = None,
    trace: Callable[[Step], None] | None = None,
    validate: bool = False,
) -> ServingRecord:
    """These arrivals, with the scenario's policy."""
    policy = build.policy(scenario, setup)
    if _choose(engine, policy, trace is not None or validate) == "native":
        return native.simulate(scenario, setup, policy, arrivals, progress)
    return simulate_reference(scenario, setup, policy, arrivals, progress, trace, validate)


def _choose(engine: EngineName, policy: Any, reference_only: bool) -> EngineName:
    if engine not in ("auto", "python", "native"):
        raise InputError("engine", engine, "one of auto, python, native")
    twin = native.has_twin(policy)
    if engine == "native" and not twin:
        name = type(policy).__name__
        raise InputError("engine", engine, f"python: {name} has no native twin for this scenario")
    if engine == "native" and reference_only:
        raise InputError("engine", engine, "python: only the reference engine records traces")
    return "native" if twin and engine != "python" and not reference_only else "python"


def simulate_reference(
    scenario: Scenario,
    setup: Setup,
    policy: Any,
    arrivals: Arrivals,
    progress: Callable[[Time], None] | None = None,
    trace: Callable[[Step], None] | None = None,
    validate: bool = False,
) -> ServingRecord:
    """Simulate with the Python reference."""
    ready = prepared(scenario, setup, policy, arrivals, Watching(trace, validate))
    return ready.record(simulate(ready.engine, ready.arrivals, ready.world, progress))


def prepared(
    scenario: Scenario, setup: Setup, policy: Any, arrivals: Arrivals, watching: Watching
) -> Simulation[ServingRecord]:
    """Make the books and the world of a scenario for these arrivals."""
    deadlines = build.deadlines(arrivals, setup)
    state = ServingState(setup)
    truth, profiler = build.truth(scenario, setup, arrivals), build.profiler(scenario, arrivals, policy)

    def record(end: Time) -> ServingRecord:
        return ServingRecord(
            policy=scenario.policy.name,
            setup=setup,
            seed=scenario.seed,
            requests=requests_of(
                state.ledger, arrivals.time, deadlines, arrivals.model, arrivals.application
            ),
            batches=batches_of(state.ledger),
            reasons=tuple(state.ledger.reasons),
            warmup=scenario.workload.warmup,
            duration=scenario.duration,
        )

    return Simulation(
        Engine(state, policy, watching.validate, watching.trace),
        events(arrivals, deadlines),
        ServingWorld(setup, truth, profiler),
        record,
        scenario.length,
    )


def prepare(scenario: Scenario, policy: Any, watching: Watching) -> Simulation[ServingRecord]:
    """Make the books, the world and the arrivals of a scenario."""
    wall, cpu = time.perf_counter(), time.process_time()
    ready = prepared(scenario, build.setup(scenario), policy, build.arrivals(scenario), watching)

    def record(end: Time) -> ServingRecord:
        return timed(ready.record(end), time.perf_counter() - wall, time.process_time() - cpu)

    return Simulation(ready.engine, ready.arrivals, ready.world, record, ready.length)


def by_twin(scenario: Scenario, policy: Any, progress: Callable[[Time], None] | None) -> ServingRecord | None:
    """Simulate on the native twin, where the policy has one."""
    if not native.has_twin(policy):
        return None
    wall, cpu = time.perf_counter(), time.process_time()
    setup = build.setup(scenario)
    record = native.simulate(scenario, setup, policy, build.arrivals(scenario), progress)
    return timed(record, time.perf_counter() - wall, time.process_time() - cpu)


def events(arrivals: Arrivals, deadlines: Ints) -> Iterator[tuple[Time, RequestArrived]]:
    """Arrivals one by one, made in blocks so that a long run needs no list of everything."""
    for first in range(0, len(arrivals), _BLOCK):
        block = slice(first, first + _BLOCK)
        rows = zip(
            arrivals.time[block].tolist(),
            arrivals.model[block].tolist(),
            deadlines[block].tolist(),
            arrivals.application[block].tolist(),
            strict=True,
        )
        for id_, (at, model, deadline, application) in enumerate(rows, first):
            yield at, RequestArrived(Request(id_, model, at, deadline, application))


_BLOCK = 65_536


def timed(record: ServingRecord, wall_s: float, cpu_s: float) -> ServingRecord:
    from dataclasses import replace

    return replace(record, wall_s=wall_s, cpu_s=cpu_s)


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
    told=lambda scenario: (build.setup(scenario),),
    twin=by_twin,
    report=Report(
        summarize=lambda scenario, record: report.summarize_run(record),
        tables=report.tables,
        shown=report.shown,
        write=report.write,
        draw=report.draw,
        picture="overview.png",
        files=report.FILES,
        rows=report.rows,
        explain=report.explain,
        title=report.title,
    ),
    named={"models": written_out},
)
