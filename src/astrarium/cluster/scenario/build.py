"""From a described cluster to what the cluster level knows: machines, events in order, slowdowns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from astrarium.cluster.contract import App, AppArrived, Event, MachineJoined, MachineLost
from astrarium.cluster.machines import Machine, Slowdowns, Spread
from astrarium.cluster.scenario import apps as cluster_apps
from astrarium.cluster.scenario.read import ClusterScenario
from astrarium.cluster.scenario.schema import Change, MachineKind, ModelSlowdown, Unknown
from astrarium.cluster.workloads import themis as drawn
from astrarium.cluster.workloads.themis import SLOWDOWNS
from astrarium.core.errors import InputError
from astrarium.core.units import FOREVER, Time

MOST_GPUS = 200_000
LONGEST: Time = FOREVER // 4  # nine years
NAMED: dict[str, Callable[[], Sequence[drawn.DrawnMachine]]] = {
    "themis-testbed": drawn.themis_testbed,
    "themis-simulator": drawn.themis_simulator,
    "themis-printed": lambda: drawn.themis_simulator("printed"),
    "themis-truth-telling": drawn.themis_truth_telling,
}


class Built(NamedTuple):
    """*largest*: the most GPUs that the cluster ever has. *work_ends*: about when all could be done."""

    arrivals: list[tuple[Time, Event]]
    apps: dict[str, App]
    machines: dict[int, Machine]  # those that join later too
    largest: int
    work_ends: Time


def build(scenario: ClusterScenario) -> Built:
    try:
        return _built(scenario)
    except InputError as error:
        raise error.read_from(scenario.source) from None


def slowdowns(scenario: ClusterScenario, believed: bool = False) -> Slowdowns:
    """The truth; or what policies begin with, where they are not told it."""
    section = scenario.slowdowns
    if believed and not section.told:
        return Slowdowns()
    known: dict[tuple[str, str], dict[Spread, float]] = {}
    if section.table == "themis":
        known = {key: dict(zip(Spread, found.by_spread(), strict=True)) for key, found in SLOWDOWNS.items()}
    known |= {(each.model, each.network): _by_spread(each) for each in section.models}
    return Slowdowns(known, _by_spread(section.others))


def _by_spread(of: ModelSlowdown | Unknown) -> dict[Spread, float]:
    return dict(zip(Spread, (1.0, of.machine, of.rack, of.cluster), strict=True))


def _built(scenario: ClusterScenario) -> Built:
    first = _machines(scenario)
    changes, machines, largest = _changes(scenario.changes, first)
    arrivals = cluster_apps.arrivals(scenario, largest)
    events: list[tuple[Time, Event]] = [(0, MachineJoined(machine)) for machine in first]
    events += changes
    events += [(at, AppArrived(app)) for at, app in arrivals]
    events.sort(key=lambda each: each[0])  # machines first, where instants are the same
    ends = max(at for at, _ in events) + sum(app.work for _, app in arrivals) // largest
    if ends > LONGEST:
        raise InputError("apps", None, "arrivals and work of less than nine years for this cluster")
    return Built(events, {app.name: app for _, app in arrivals}, machines, largest, ends)


def _machines(scenario: ClusterScenario) -> list[Machine]:
    if isinstance(scenario.machines, str):
        return [msgspec.convert(each, Machine, from_attributes=True) for each in NAMED[scenario.machines]()]
    found: list[Machine] = []
    for place, kind in enumerate(scenario.machines):
        found += _of_kind(kind, len(found))
        if sum(machine.gpus for machine in found) > MOST_GPUS:
            raise InputError(f"machines[{place}].count", kind.count, f"at most {MOST_GPUS:,} GPUs in all")
    return found


def _of_kind(kind: MachineKind, first: int) -> list[Machine]:
    return [
        Machine(
            first + place,
            kind.gpus,
            place % kind.racks if kind.racks else kind.rack or 0,
            kind.slot,
            kind.network,
        )
        for place in range(kind.count)
    ]


def _changes(
    changes: tuple[Change, ...], first: list[Machine]
) -> tuple[list[tuple[Time, Event]], dict[int, Machine], int]:
    """Machines that come have the next numbers."""
    known, there = {machine.id: machine for machine in first}, {machine.id for machine in first}
    events: list[tuple[Time, Event]] = []
    size = largest = sum(machine.gpus for machine in first)
    for place, change in enumerate(changes):
        if change.lose is not None:
            if change.lose not in there:
                told = f"the number of a machine that is there then: 0 to {len(known) - 1}, once"
                raise InputError(f"changes[{place}].lose", change.lose, told)
            there.remove(change.lose)
            events.append((change.at, MachineLost(change.lose)))
            size -= known[change.lose].gpus
        elif change.join is not None:
            for machine in _of_kind(change.join, len(known)):
                known[machine.id] = machine
                there.add(machine.id)
                events.append((change.at, MachineJoined(machine)))
                size += machine.gpus
        largest = max(largest, size)
    return events, known, largest
