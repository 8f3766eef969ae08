"""Jobs on one GPU, as a level."""

from __future__ import annotations

from collections.abc import Iterable

from astrarium.core.engine import Engine
from astrarium.core.level import Level, Simulation, Watching
from astrarium.core.quantities import Time
from astrarium.device import report
from astrarium.device.contract import Action, Event, Job, JobArrived
from astrarium.device.policies import IterationPolicy, iteration_policies
from astrarium.device.record import DeviceRecord, Spans
from astrarium.device.scenario.job_arrivals import arrivals
from astrarium.device.scenario.read import DEFAULT_POLICY, JobScenario, parse
from astrarium.device.state import DeviceState
from astrarium.device.world import DeviceWorld

Arrival = tuple[Time, Job]


def prepare(scenario: JobScenario, policy: IterationPolicy, watching: Watching) -> Simulation[DeviceRecord]:
    """Make the state, the world and the arrivals of a scenario."""
    gpu = scenario.gpu
    state = DeviceState(gpu.memory)
    spans = Spans(state)

    def record(end: Time) -> DeviceRecord:
        rows = list(state.ledger.rows.values())
        return DeviceRecord(scenario.policy.name, gpu.memory, rows, spans.in_order())

    coming = arrivals(scenario)
    return Simulation(
        Engine(state, policy, watching.validate, watching.after(spans)),
        [(at, JobArrived(job)) for at, job in coming],
        DeviceWorld(gpu.switch, gpu.overhead, gpu.pause),
        record,
        longest(coming),
    )


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
    summarize=lambda scenario, record: report.summarize(record),
    report=report,
    picture="turns.png",
)
