"""A described cluster becomes what the cluster level knows: machines, events in order, slowdowns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from astrarium.cluster.contract import (
    App,
    AppArrived,
    Event,
    GpuFailed,
    GpuRepaired,
    MachineJoined,
    MachineLost,
)
from astrarium.cluster.machines import Floor, Machine, Spread
from astrarium.cluster.scenario import schema
from astrarium.cluster.scenario.arrivals import app_arrivals
from astrarium.cluster.scenario.read import ClusterScenario
from astrarium.cluster.slowdowns import Slowdowns
from astrarium.cluster.workloads.themis import clusters, models
from astrarium.core.errors import InputError, read_from
from astrarium.core.quantities import FOREVER, Time

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
        known = {key: dict(by_spread) for key, by_spread in models.SLOWDOWNS.items()}
    known |= {(model.model, model.network): _by_spread(model) for model in section.models}
    return Slowdowns(known, _by_spread(section.others))


def _by_spread(of: schema.Unknown) -> dict[Spread, float]:
    return dict(zip(Spread, (1.0, of.machine, of.rack, of.cluster), strict=True))


def _built(scenario: ClusterScenario) -> Built:
    first = first_machines(scenario)
    changes = _changes(scenario.changes, first)
    largest = changes.largest
    arrivals = app_arrivals(scenario, largest)
    events: list[tuple[Time, Event]] = [(0, MachineJoined(machine)) for machine in first]
    events += changes.events
    events += [(at, AppArrived(app)) for at, app in arrivals]
    events.sort(key=lambda entry: entry[0])  # machines first, where instants are the same
    ends = max(at for at, _ in events) + sum(app.work for _, app in arrivals) // largest
    if ends > LONGEST:
        raise InputError("apps", None, "arrivals and work of less than nine years for this cluster")
    return Built(events, {app.name: app for _, app in arrivals}, changes.machines, largest, ends)


def first_machines(scenario: ClusterScenario) -> list[Machine]:
    if isinstance(scenario.machines, str):
        return list(clusters.MACHINES[scenario.machines])
    machines: list[Machine] = []
    for place, kind in enumerate(scenario.machines):
        machines += _of_kind(kind, len(machines))
        if sum(machine.gpus for machine in machines) > MOST_GPUS:
            raise InputError(f"machines[{place}].count", kind.count, f"at most {MOST_GPUS:,} GPUs in all")
    return machines


def _of_kind(kind: schema.MachineKind, first: int) -> list[Machine]:
    racks = [place % kind.racks if kind.racks else kind.rack or 0 for place in range(kind.count)]
    return [
        Machine(number, kind.gpus, rack, kind.slot, kind.network) for number, rack in enumerate(racks, first)
    ]


class _Changes(NamedTuple):
    """What changes in a cluster, all machines that it ever has, and the most GPUs that it has at once."""

    events: list[tuple[Time, Event]]
    machines: dict[int, Machine]
    largest: int


def _changes(changes: tuple[schema.Change, ...], first: list[Machine]) -> _Changes:
    """Return what changes; machines that come have the next numbers."""
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
    return _Changes(events, known, largest)


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
        expected = f"the number of a machine that is there then: 0 to {len(known) - 1}, once"
        raise InputError(field, machine, expected)


def _gpu(place: schema.GpuPlace, field: str, floor: Floor, known: dict[int, Machine], works: bool) -> int:
    """The number of a GPU that works then, or does not."""
    _check_there(place.machine, f"{field}.machine", floor, known)
    gpus = floor.all_of(known[place.machine])
    fitting = [n for n, gpu in enumerate(gpus) if (gpu in floor.gpus_of[place.machine]) is works]
    if place.gpu not in fitting:
        there = ", ".join(map(str, fitting)) or "there is none"
        expected = f"a GPU of this machine that {'works' if works else 'has failed'} then: {there}"
        raise InputError(f"{field}.gpu", place.gpu, expected)
    return gpus[place.gpu]
