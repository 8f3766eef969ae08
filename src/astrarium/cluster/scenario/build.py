"""From a described cluster to what the cluster level knows: machines, events in order, slowdowns."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from astrarium.cluster.contract import (
    App,
    AppArrived,
    Event,
    GpuFailed,
    GpuRepaired,
    Job,
    MachineJoined,
    MachineLost,
)
from astrarium.cluster.live import limits
from astrarium.cluster.live.backend import JobCommand
from astrarium.cluster.machines import Floor, Machine, Slowdowns, Spread
from astrarium.cluster.scenario import schema
from astrarium.cluster.scenario.read import ClusterScenario
from astrarium.cluster.workloads import themis
from astrarium.cluster.workloads.apps import DrawnApp, read_trace, scaled, single_apps, stretched
from astrarium.core.decode import Decoder
from astrarium.core.errors import InputError, read_from
from astrarium.core.streams import stream
from astrarium.core.units import FOREVER, Time

# From described apps to those of the cluster level, with the instants at which they arrive.


MOST_JOBS = 1_000_000

Arrival = tuple[Time, App]


def app_arrivals(scenario: ClusterScenario, largest: int) -> list[Arrival]:
    """In order of time; apps are numbered in that order. None needs more GPUs at once than *largest*."""
    apps = scenario.apps
    if isinstance(apps, schema.ThemisApps):
        found = [_converted(each) for each in _themis(apps, scenario.seed)]
    elif isinstance(apps, schema.TraceApps):
        found = [_converted(each) for each in _trace(apps)]
    else:
        found = [
            each for place, entry in enumerate(apps) for each in copies(entry, place, scenario.seed, largest)
        ]
    _check(found, largest)
    found.sort(key=lambda each: each[0])
    return [(at, msgspec.structs.replace(app, id=number)) for number, (at, app) in enumerate(found)]


def _check(found: list[Arrival], largest: int) -> None:
    if sum(len(phase) for _, app in found for phase in app.phases) > MOST_JOBS:
        raise InputError("apps", len(found), f"apps with at most {MOST_JOBS:,} jobs together")
    for _, app in found:
        needed = max(job.least for phase in app.phases for job in phase)
        if needed > largest:
            told = f"at most {largest} GPUs for a job: the cluster has no more (`largest` leaves others out)"
            raise InputError("apps", f"{needed} for {app.name}", told)


def _converted(drawn: DrawnApp) -> Arrival:
    return drawn.arrival, msgspec.convert(drawn, App, from_attributes=True)


def _themis(apps: schema.ThemisApps, seed: int) -> tuple[DrawnApp, ...]:
    try:
        drawn = _sweeps(apps, seed)
        if apps.themis == 2:
            drawn = themis.halving(drawn, seed)
        return scaled(drawn, apps.gpu_hours, apps.load)
    except InputError as error:
        raise error if error.source else error.at("apps") from None


def _sweeps(apps: schema.ThemisApps, seed: int) -> tuple[DrawnApp, ...]:
    if apps.sweeps is None:
        return themis.parametric(seed, apps.count, apps.network_share, apps.network)
    jobs = read_trace(apps.sweeps, "philly")
    return themis.from_philly(jobs, seed, apps.count, apps.network_share, apps.network)


def _trace(apps: schema.TraceApps) -> tuple[DrawnApp, ...]:
    found = read_trace(apps.trace, apps.format)
    jobs = [job for job in found if apps.largest is None or job.gpus <= apps.largest]
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
            yield tuple(_job(next(numbers), each, entry.model) for each in phase for _ in range(each.count))
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
    return [float(each) for each in np.asarray(drawn)]


def _halving(
    entry: schema.AppEntry, factors: list[float], numbers: Iterable[int]
) -> Iterator[tuple[Job, ...]]:
    """Equal parts of the budget for each phase; those who go on are the first of the file's order."""
    rounds = themis.iterations_of_phases(entry.jobs)
    counting = iter(numbers)
    total = sum(each * (entry.jobs >> phase) for phase, each in enumerate(rounds))
    for phase, each in enumerate(rounds):
        most = max(entry.gpus, min(entry.gpus << phase, entry.most or themis.MOST_GPUS_HALVING))
        works = [
            max(1, round((entry.budget or 0) * each / total * f)) for f in factors[: entry.jobs >> phase]
        ]
        yield tuple(Job(next(counting), work, entry.gpus, most, entry.model, None, each) for work in works)


def live_apps(raw: Any, largest: int, home: Path, field: str = "app") -> Sequence[tuple[App, JobCommand]]:
    """An app as written, with its command. It comes when it is submitted, whatever its arrival says."""
    limits.check_size(raw, field)
    task, entry = _live_entry(raw, field)
    try:
        command = task.task(home)
        found = [(app, command) for _, app in copies(entry, 0, 1, largest)]
    except InputError as error:
        raise InputError(error.field.replace("apps[0]", field), error.value, error.expected) from None
    _check_work([app for app, _ in found], field)
    return found


def _live_entry(raw: Any, field: str) -> tuple[schema.TaskEntry, schema.AppEntry]:
    task = schema.task_entry(raw, field)
    if task is None:
        raise InputError(f"{field}.command", None, "a command: live, an app is what it runs")
    entry: schema.AppEntry = Decoder().decode(schema.AppEntry, schema.simulated(raw, field), field)
    if entry.kind == "halving":
        told = "jobs or curve: live, only the app itself knows who is in its next phase"
        raise InputError(f"{field}.kind", entry.kind, told)
    if entry.jobs_in_all > limits.MOST_JOBS:
        told = f"at most {limits.MOST_JOBS} jobs, those of all copies together"
        raise InputError(f"{field}.jobs", entry.jobs_in_all, told)
    return task, entry


def _check_work(apps: Sequence[App], field: str) -> None:
    """Refuse jobs whose GPU time no book could hold."""
    for app in apps:
        for job in (job for phase in app.phases for job in phase):
            if max(job.work, job.forecast) >= FOREVER:
                told = "a length that takes less than 36 years of GPU time on the GPUs of the job"
                raise InputError(f"{field}.length", None, told)


MOST_GPUS = 200_000
LONGEST: Time = FOREVER // 4  # nine years


class Built(NamedTuple):
    """*largest*: the most GPUs that the cluster ever has. *work_ends*: about when all could be done."""

    arrivals: list[tuple[Time, Event]]
    apps: dict[str, App]
    machines: dict[int, Machine]  # those that join later too
    largest: int
    work_ends: Time


def build(scenario: ClusterScenario) -> Built:
    with read_from(scenario.source):
        return _built(scenario)


def slowdowns(scenario: ClusterScenario, believed: bool = False) -> Slowdowns:
    """The truth; or what policies begin with, where they are not told it."""
    section = scenario.slowdowns
    if believed and not section.told:
        return Slowdowns()
    known: dict[tuple[str, str], dict[Spread, float]] = {}
    if section.table == "themis":
        known = {key: dict(found) for key, found in themis.SLOWDOWNS.items()}
    known |= {(each.model, each.network): _by_spread(each) for each in section.models}
    return Slowdowns(known, _by_spread(section.others))


def _by_spread(of: schema.Unknown) -> dict[Spread, float]:
    return dict(zip(Spread, (1.0, of.machine, of.rack, of.cluster), strict=True))


def _built(scenario: ClusterScenario) -> Built:
    first = first_machines(scenario)
    changes, machines, largest = _changes(scenario.changes, first)
    arrivals = app_arrivals(scenario, largest)
    events: list[tuple[Time, Event]] = [(0, MachineJoined(machine)) for machine in first]
    events += changes
    events += [(at, AppArrived(app)) for at, app in arrivals]
    events.sort(key=lambda each: each[0])  # machines first, where instants are the same
    ends = max(at for at, _ in events) + sum(app.work for _, app in arrivals) // largest
    if ends > LONGEST:
        raise InputError("apps", None, "arrivals and work of less than nine years for this cluster")
    return Built(events, {app.name: app for _, app in arrivals}, machines, largest, ends)


def first_machines(scenario: ClusterScenario) -> list[Machine]:
    if isinstance(scenario.machines, str):
        return list(themis.MACHINES[scenario.machines])
    found: list[Machine] = []
    for place, kind in enumerate(scenario.machines):
        found += _of_kind(kind, len(found))
        if sum(machine.gpus for machine in found) > MOST_GPUS:
            raise InputError(f"machines[{place}].count", kind.count, f"at most {MOST_GPUS:,} GPUs in all")
    return found


def _of_kind(kind: schema.MachineKind, first: int) -> list[Machine]:
    racks = [place % kind.racks if kind.racks else kind.rack or 0 for place in range(kind.count)]
    return [
        Machine(number, kind.gpus, rack, kind.slot, kind.network) for number, rack in enumerate(racks, first)
    ]


def _changes(
    changes: tuple[schema.Change, ...], first: list[Machine]
) -> tuple[list[tuple[Time, Event]], dict[int, Machine], int]:
    """Machines that come have the next numbers."""
    floor = Floor()
    events: list[tuple[Time, Event]] = []
    for machine in first:
        floor.join(machine)
    known = {machine.id: machine for machine in first}
    largest = floor.size
    for place, change in enumerate(changes):
        for event in _changed(change, f"changes[{place}]", floor, known):
            events.append((change.at, event))
        largest = max(largest, floor.size)
    return events, known, largest


def _changed(change: schema.Change, field: str, floor: Floor, known: dict[int, Machine]) -> Iterator[Event]:
    if change.lose is not None:
        _check_there(change.lose, f"{field}.lose", floor, known)
        floor.leave(change.lose)
        yield MachineLost(change.lose)
    elif change.join is not None:
        for machine in _of_kind(change.join, len(known)):
            known[machine.id] = machine
            floor.join(machine)
            yield MachineJoined(machine)
    elif change.fail is not None:
        gpu = _gpu(change.fail, f"{field}.fail", floor, known, works=True)
        floor.fail(gpu)
        yield GpuFailed(gpu, "it broke")
    elif change.repair is not None:
        gpu = _gpu(change.repair, f"{field}.repair", floor, known, works=False)
        floor.repair(gpu)
        yield GpuRepaired(gpu)


def _check_there(machine: int, field: str, floor: Floor, known: dict[int, Machine]) -> None:
    if machine not in floor.machines:
        told = f"the number of a machine that is there then: 0 to {len(known) - 1}, once"
        raise InputError(field, machine, told)


def _gpu(place: schema.GpuPlace, field: str, floor: Floor, known: dict[int, Machine], works: bool) -> int:
    """The number of a GPU that works then, or does not."""
    _check_there(place.machine, f"{field}.machine", floor, known)
    gpus = floor.all_of(known[place.machine])
    fitting = [n for n, gpu in enumerate(gpus) if (gpu in floor.gpus_of[place.machine]) is works]
    if place.gpu not in fitting:
        there = ", ".join(map(str, fitting)) or "there is none"
        told = f"a GPU of this machine that {'works' if works else 'has failed'} then: {there}"
        raise InputError(f"{field}.gpu", place.gpu, told)
    return gpus[place.gpu]
