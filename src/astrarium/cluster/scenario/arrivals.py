"""Described apps become those of the cluster level, with the instants at which they arrive."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from astrarium.cluster.contract import (
    App,
    Job,
)
from astrarium.cluster.scenario import schema
from astrarium.cluster.scenario.read import ClusterScenario
from astrarium.cluster.workloads.apps import DrawnApp, scaled, single_apps, stretched
from astrarium.cluster.workloads.themis import successive_halving, sweeps
from astrarium.cluster.workloads.traces import read_trace
from astrarium.core.errors import InputError
from astrarium.core.quantities import Time
from astrarium.core.random_streams import stream

MOST_JOBS = 1_000_000
Arrival = tuple[Time, App]


def app_arrivals(scenario: ClusterScenario, largest: int) -> list[Arrival]:
    """Return the apps of a scenario in order of time, and numbered so. None needs more GPUs at once than
    *largest*."""
    apps = scenario.apps
    if isinstance(apps, schema.ThemisApps):
        arrivals = [_converted(drawn) for drawn in _themis(apps, scenario.seed)]
    elif isinstance(apps, schema.TraceApps):
        arrivals = [_converted(drawn) for drawn in _trace(apps)]
    else:
        arrivals = [
            arrival
            for place, entry in enumerate(apps)
            for arrival in copies(entry, place, scenario.seed, largest)
        ]
    _check(arrivals, largest)
    arrivals.sort(key=lambda arrival: arrival[0])
    return [(at, msgspec.structs.replace(app, id=number)) for number, (at, app) in enumerate(arrivals)]


def _check(arrivals: list[Arrival], largest: int) -> None:
    if sum(len(phase) for _, app in arrivals for phase in app.phases) > MOST_JOBS:
        raise InputError("apps", len(arrivals), f"apps with at most {MOST_JOBS:,} jobs together")
    for _, app in arrivals:
        needed = max(job.least for phase in app.phases for job in phase)
        if needed > largest:
            expected = (
                f"at most {largest} GPUs for a job: the cluster has no more (`largest` leaves others out)"
            )
            raise InputError("apps", f"{needed} for {app.name}", expected)


def _converted(drawn: DrawnApp) -> Arrival:
    return drawn.arrival, msgspec.convert(drawn, App, from_attributes=True)


def _themis(apps: schema.ThemisApps, seed: int) -> tuple[DrawnApp, ...]:
    try:
        drawn = _sweeps(apps, seed)
        if apps.themis == 2:
            drawn = successive_halving.halving(drawn, seed)
        return scaled(drawn, apps.gpu_hours, apps.load)
    except InputError as error:
        raise error if error.source else error.at("apps") from None


def _sweeps(apps: schema.ThemisApps, seed: int) -> tuple[DrawnApp, ...]:
    if apps.sweeps is None:
        return sweeps.parametric(seed, apps.count, apps.network_share, apps.network)
    jobs = read_trace(apps.sweeps, "philly")
    return sweeps.from_philly(jobs, seed, apps.count, apps.network_share, apps.network)


def _trace(apps: schema.TraceApps) -> tuple[DrawnApp, ...]:
    traced = read_trace(apps.trace, apps.format)
    jobs = [job for job in traced if apps.largest is None or job.gpus <= apps.largest]
    if not jobs:
        raise InputError("apps.largest", apps.largest, "GPUs of at least one job of the trace")
    return stretched(single_apps(jobs)[: apps.first], apps.work, apps.arrivals)


def copies(entry: schema.AppEntry, place: int, seed: int, largest: int) -> Iterator[Arrival]:
    needed = entry.gpus if entry.phases is None else max(job.gpus for phase in entry.phases for job in phase)
    if needed > largest:
        field = f"apps[{place}].{'gpus' if entry.phases is None else 'phases'}"
        raise InputError(field, needed, f"at most {largest} GPUs for a job, all that the cluster ever has")
    for number, name in enumerate(entry.names):
        phases = tuple(_phases(entry, seed, name))
        limits = entry.priority, entry.min_run, entry.max_run
        yield entry.arrival + number * entry.every, App(0, name, phases, entry.team, entry.kind, *limits)


def _phases(entry: schema.AppEntry, seed: int, name: str) -> Iterator[tuple[Job, ...]]:
    numbers = itertools.count()
    if entry.phases is not None:
        for phase in entry.phases:
            yield tuple(_job(next(numbers), job, entry.model) for job in phase for _ in range(job.count))
    elif entry.kind == "halving":
        yield from _halving(entry, _factors(entry, seed, name), numbers)
    else:
        yield tuple(_alike(next(numbers), entry, factor) for factor in _factors(entry, seed, name))


def _job(number: int, job: schema.PhaseJob, model: str) -> Job:
    expected = None if job.expected is None else job.expected * job.gpus
    most = job.most or job.gpus
    model = model if job.model is None else job.model
    return Job(number, job.length * job.gpus, job.gpus, most, model, expected, job.iterations)


def _alike(number: int, entry: schema.AppEntry, factor: float) -> Job:
    work = max(1, round((entry.length or 0) * entry.gpus * factor))
    expected = None if entry.expected is None else entry.expected * entry.gpus
    return Job(number, work, entry.gpus, entry.most or entry.gpus, entry.model, expected)


def _factors(entry: schema.AppEntry, seed: int, name: str) -> list[float]:
    """How long each of its jobs is, over what the file says."""
    if not entry.spread:
        return [1.0] * entry.jobs
    drawn = stream(seed, "cluster", "spread", name).uniform(1 - entry.spread, 1 + entry.spread, entry.jobs)
    return [float(factor) for factor in np.asarray(drawn)]


def _halving(
    entry: schema.AppEntry, factors: list[float], numbers: Iterable[int]
) -> Iterator[tuple[Job, ...]]:
    """Equal parts of the budget for each phase; those who go on are the first of the file's order."""
    rounds = successive_halving.iterations_of_phases(entry.jobs)
    counting = iter(numbers)
    total = sum(iterations * (entry.jobs >> phase) for phase, iterations in enumerate(rounds))
    for phase, iterations in enumerate(rounds):
        most = max(entry.gpus, min(entry.gpus << phase, entry.most or successive_halving.MOST_GPUS_HALVING))
        works = [
            max(1, round((entry.budget or 0) * iterations / total * f))
            for f in factors[: entry.jobs >> phase]
        ]
        yield tuple(
            Job(next(counting), work, entry.gpus, most, entry.model, None, iterations) for work in works
        )
