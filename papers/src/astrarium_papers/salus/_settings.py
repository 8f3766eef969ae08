"""What the figures of Salus share: the policies, the GPU, and times as people read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from astrarium.core.engine import Engine
from astrarium.core.quantities import MILLISECOND, SECOND, Time
from astrarium.core.trace import Step
from astrarium.device import salus
from astrarium.device.contract import IterationFinished, Job, JobArrived
from astrarium.device.ledger import JobRow
from astrarium.device.level import Arrival
from astrarium.device.policies import IterationPolicy, iteration_policies
from astrarium.device.scenario.job_arrivals import divided
from astrarium.device.state import DeviceState
from astrarium.device.world import DeviceWorld
from astrarium.run.simulate import simulate

POLICIES = ("fifo", "srtf", "pack", "fair")
COLORS = {"fifo": "#999999", "srtf": "#0072B2", "pack": "#009E73", "fair": "#D55E00"}
MINUTE: Time = 60 * SECOND
MEMORY = salus.GPU_MEMORY

Iteration = tuple[int, Time, Time]  # the job, when it started, when it ended


def named(number: int, name: str, iterations: int, together: int = 1) -> Job:
    """Return a job of Table A.1; *together* of its iterations are one turn."""
    workload = salus.lookup(name)
    turns = divided(workload.iteration, iterations, workload.iteration * together)
    return Job(number, name, workload.persistent, workload.ephemeral, *turns, demand=workload.demand)


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


def iterations_of(policy: str, arrivals: list[Arrival]) -> list[Iteration]:
    """Return every iteration of a run, in the order of their ends."""
    iterations: list[Iteration] = []
    play(policy, arrivals, MEMORY, record=_into(iterations))
    return iterations


def _into(iterations: list[Iteration]) -> Callable[[Step], None]:
    def record(step: Step) -> None:
        ended = [event for event in step.events if isinstance(event, IterationFinished)]
        iterations.extend((event.job, event.started, step.now) for event in ended)

    return record


def minutes(time: float) -> float:
    return round(time / MINUTE, 2)


def milliseconds(time: float) -> float:
    return round(time / MILLISECOND, 3)
