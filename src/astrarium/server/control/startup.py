"""A server starts when every worker has its models; what keeps it from that is told with a name."""

from __future__ import annotations

from collections.abc import Callable

from astrarium.core.errors import InputError
from astrarium.core.quantities import SECOND, Time, rounded_duration, write_duration
from astrarium.server.control.coordinator import Coordinator
from astrarium.server.control.plan import ServingPlan
from astrarium.server.control.repository import Repository
from astrarium.server.control.workers.fleet import Fleet, LateWorker
from astrarium.server.polling import until


async def until_workers_are_up(
    plan: ServingPlan,
    coordinator: Coordinator,
    repository: Repository,
    fleet: Fleet,
    clock: Callable[[], Time],
) -> None:
    """Wait for the workers; InputError names a model that cannot be loaded, or who is late."""
    workers = len(plan.workers)
    up = await until(lambda: len(coordinator.present) == workers, clock, plan.start_limit / SECOND)
    for entry in repository.entries:
        if entry.plan.loaded and entry.state == "UNAVAILABLE":
            expected = f"a model that can be loaded; {entry.reason}"
            raise InputError(f"models.{entry.plan.name}.backend", entry.plan.backend, expected)
    if not up:
        late = _late_workers(repository, fleet, clock())
        expected = f"a time in which all models are loaded; {late}; {fleet.last_death}"
        raise InputError("server.start_limit", write_duration(plan.start_limit), expected)


def _late_workers(repository: Repository, fleet: Fleet, now: Time) -> str:
    """Say which workers are not up, and what they are doing."""
    return "; ".join(
        f"worker {late.worker}, started {rounded_duration(now - late.since)} ago, {_doing(late, repository)}"
        for late in fleet.late()
    )


def _doing(late: LateWorker, repository: Repository) -> str:
    names = [repository.entries[model].plan.name for model in late.models]
    return f"was still loading {', '.join(names)}" if names else "is not up"
