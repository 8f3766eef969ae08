"""Jobs on one GPU, simulated from start to end."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from astrarium.core.engine import Engine
from astrarium.core.trace import Step
from astrarium.core.units import Time
from astrarium.device import scenario as jobs_build
from astrarium.device.contract import Job, JobArrived
from astrarium.device.policies import IterationPolicy, iteration_policies
from astrarium.device.record import DeviceRecord, Spans
from astrarium.device.scenario import JobScenario
from astrarium.device.state import DeviceState, JobRow
from astrarium.device.world import DeviceWorld
from astrarium.run.simulate import simulate

Arrival = tuple[Time, Job]
Progress = Callable[[Time], None]


def run(scenario: JobScenario, progress: Progress | None = None) -> DeviceRecord:
    gpu = scenario.gpu
    state = DeviceState(gpu.memory)
    spans = Spans(state)
    world = DeviceWorld(gpu.switch, gpu.overhead, gpu.pause)
    rows = _played(state, scenario.policy, jobs_build.arrivals(scenario), world, progress, spans)
    return DeviceRecord(scenario.policy, gpu.memory, rows, spans.found())


def play(
    policy: str | IterationPolicy,
    arrivals: Iterable[Arrival],
    memory: int,
    world: DeviceWorld | None = None,
    record: Callable[[Step], None] | None = None,
) -> list[JobRow]:
    """One row for each job, in the order of arrival. *memory* is the GPU's, in bytes."""
    return _played(DeviceState(memory), policy, arrivals, world or DeviceWorld(), None, record)


def _played(
    state: DeviceState,
    policy: str | IterationPolicy,
    arrivals: Iterable[Arrival],
    world: DeviceWorld,
    progress: Progress | None,
    record: Callable[[Step], None] | None,
) -> list[JobRow]:
    chosen = iteration_policies.get(policy)() if isinstance(policy, str) else policy
    engine = Engine(state, chosen, record=record)
    simulate(engine, [(at, JobArrived(job)) for at, job in arrivals], world, progress)
    return list(state.ledger.rows.values())


def longest(arrivals: Iterable[Arrival]) -> Time:
    """When the last job would end if they ran one after another: what progress is measured by."""
    end = 0
    for at, job in arrivals:
        end = max(end, at) + job.duration
    return end
