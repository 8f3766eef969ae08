"""Jobs on one GPU, as a level."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from astrarium.core.engine import Engine
from astrarium.core.level import Level, Report, Simulation, Watching
from astrarium.core.trace import Step
from astrarium.core.units import Time
from astrarium.device import report
from astrarium.device.contract import Action, Event, Job, JobArrived
from astrarium.device.policies import IterationPolicy, iteration_policies
from astrarium.device.record import DeviceRecord, Spans
from astrarium.device.scenario import DEFAULT_POLICY, JobScenario, arrivals, parse
from astrarium.device.state import DeviceState, JobRow
from astrarium.device.world import DeviceWorld
from astrarium.run.simulate import simulate

Arrival = tuple[Time, Job]


def prepare(scenario: JobScenario, policy: IterationPolicy, watching: Watching) -> Simulation[DeviceRecord]:
    """Make the books, the world and the arrivals of a scenario."""
    gpu = scenario.gpu
    state = DeviceState(gpu.memory)
    spans = Spans(state)

    def watch(step: Step) -> None:
        spans(step)
        if watching.trace is not None:
            watching.trace(step)

    def record(end: Time) -> DeviceRecord:
        rows = list(state.ledger.rows.values())
        return DeviceRecord(scenario.policy.name, gpu.memory, rows, spans.found())

    coming = arrivals(scenario)
    return Simulation(
        Engine(state, policy, watching.validate, watch),
        [(at, JobArrived(job)) for at, job in coming],
        DeviceWorld(gpu.switch, gpu.overhead, gpu.pause),
        record,
        longest(coming),
    )


def play(
    policy: str | IterationPolicy,
    arrivals: Iterable[Arrival],
    memory: int,
    world: DeviceWorld | None = None,
    record: Callable[[Step], None] | None = None,
) -> list[JobRow]:
    """Return one row for each job, in the order of arrival. *memory* is the GPU's, in bytes."""
    chosen = iteration_policies.get(policy)() if isinstance(policy, str) else policy
    state = DeviceState(memory)
    engine: Engine[Any, Any, Any] = Engine(state, chosen, record=record)
    simulate(engine, [(at, JobArrived(job)) for at, job in arrivals], world or DeviceWorld())
    return list(state.ledger.rows.values())


def longest(arrivals: Iterable[Arrival]) -> Time:
    """Return when the last job would end if jobs ran one after another."""
    end = 0
    for at, job in arrivals:
        end = max(end, at) + job.duration
    return end


LEVEL: Level[JobScenario, DeviceRecord] = Level(
    name="device",
    subject="jobs on one GPU",
    item="job",
    scenario=JobScenario,
    events=Event,
    actions=Action,
    policies=iteration_policies,
    default=DEFAULT_POLICY,
    parse=parse,
    prepare=prepare,
    report=Report(
        summarize=lambda scenario, record: report.summarize(record),
        tables=report.run_tables,
        shown=report.shown,
        write=report.write_run,
        draw=report.draw_runs,
        picture="turns.png",
        files=report.FILES,
        rows=report.rows,
        explain=report.explain,
    ),
    named={},
)
