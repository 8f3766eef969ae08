"""One scenario, simulated from start to end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Literal

from astrarium.core.engine import Engine
from astrarium.core.errors import InputError
from astrarium.core.processes import Arrivals
from astrarium.core.trace import Step
from astrarium.core.units import Time
from astrarium.run.simulate import simulate
from astrarium.serving import twin as native
from astrarium.serving.contract import Request, RequestArrived, Setup
from astrarium.serving.record import Ints, ServingRecord, batches_of, requests_of
from astrarium.serving.scenario import Scenario, build
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
    deadlines = build.deadlines(arrivals, setup)
    state = ServingState(setup)
    truth, profiler = build.truth(scenario, setup, arrivals), build.profiler(scenario, arrivals, policy)
    world = ServingWorld(setup, truth, profiler)
    engine = Engine(state, policy, validate=validate, record=trace)
    simulate(engine, events(arrivals, deadlines), world, progress)
    return ServingRecord(
        policy=scenario.policy.name,
        setup=setup,
        seed=scenario.seed,
        requests=requests_of(state.ledger, arrivals.time, deadlines, arrivals.model, arrivals.application),
        batches=batches_of(state.ledger),
        reasons=tuple(state.ledger.reasons),
        warmup=scenario.workload.warmup,
        duration=scenario.duration,
    )


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
