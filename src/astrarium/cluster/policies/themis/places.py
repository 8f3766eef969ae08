"""A round of Themis chooses GPUs, once it is known how many each app gets.

They are those where an app's jobs have just been, so that they go on unbroken, and then GPUs as close
together as can be had.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import product
from math import inf

from astrarium.cluster.arrange import closest, cost_of_spread
from astrarium.cluster.auction.goods import FreeMachine
from astrarium.cluster.demand import just_expired
from astrarium.cluster.state import AppRow, ClusterState
from astrarium.cluster.work_left import time_left
from astrarium.core.quantities import Time

ByMachine = Mapping[int, Mapping[int, int]]  # GPUs of each app, by machine


def settled(state: ClusterState, shares: Mapping[int, int]) -> dict[int, tuple[int, ...]]:
    """Return so many free GPUs for each app; all take what they ran on before anybody takes others."""
    free = set(state.free)
    shares = {app: count for app, count in shares.items() if count}
    places = {app: _own(state.apps[app], free, count) for app, count in shares.items()}
    free.difference_update(*places.values())
    for app, count in shares.items():
        own = places[app]
        if len(own) < count:
            near = (*state.apps[app].leases, *own)
            new = closest(sorted(free), count - len(own), state.floor, near)
            free.difference_update(new)
            places[app] = (*own, *new)
    return places


def preferred(now: Time, state: ClusterState, shares: Mapping[int, int]) -> dict[int, tuple[int, ...]]:
    """Return so many free GPUs for each app, where there are enough for all. Those choose first to whom a bad
    place costs most, of GPUs where nobody stood or, if they are better, of all."""
    free = set(state.free)
    places = dict[int, tuple[int, ...]]()
    own = {app: _own(state.apps[app], free, count) for app, count in shares.items() if count}
    stood = {gpu for gpus in own.values() for gpu in gpus}
    for app in sorted(own, key=lambda app: cost_of_spread(state.apps[app], shares[app], state), reverse=True):
        here = [gpu for gpu in own[app] if gpu in free]
        places[app] = _best_place(now, state, state.apps[app], shares[app], here, (free - stood, free))
        free.difference_update(places[app])
    return places


def _best_place(
    now: Time, state: ClusterState, row: AppRow, count: int, here: list[int], pools: Sequence[set[int]]
) -> tuple[int, ...]:
    """Return GPUs of a pool on which an app ends soonest. To leave those where it stands takes a start."""
    if len(here) == count and _lies_well(row, (*row.leases, *here), state):
        return tuple(here)
    best = tuple[int, ...]()
    least = inf
    for stays, pool in product((here, []), pools):
        pool = {*pool, *here}.difference(stays)
        gpus = (*stays, *closest(pool, count - len(stays), state.floor, (*row.leases, *stays)))
        takes = time_left(now, row, (*row.leases, *gpus), state) + (0 if stays else state.startup)
        if len(gpus) == count and (takes < least or not best):
            best = gpus
            least = takes
    return best


def _lies_well(row: AppRow, gpus: Sequence[int], state: ClusterState) -> bool:
    """Return whether an app has one job, which would be no faster on other GPUs."""
    if len(row.jobs) > 1:
        return False
    (only,) = row.jobs.values()
    return len(gpus) <= only.job.most and state.lies_well(only.job, gpus)


def _own(row: AppRow, free: Collection[int], count: int) -> tuple[int, ...]:
    """Return up to *count* free GPUs that an app has just run on, whole jobs first, as gangs are whole."""
    here = [[gpu for gpu in job.gpus if gpu in free] for job in row.jobs.values()]
    taken: list[int] = []
    for gpus in here:
        if len(taken) + len(gpus) <= count:
            taken += gpus
    rest = [gpu for gpus in here for gpu in gpus if gpu not in taken]
    return tuple((taken + rest)[:count])


def at_home(won: ByMachine, goods: Sequence[FreeMachine], state: ClusterState) -> dict[int, tuple[int, ...]]:
    """Return the GPUs for what was won on machines. Machines that are alike may change places: each goes,
    with all that was won on it, where most of its winners' jobs have just been."""
    before = {app: set(just_expired(state.apps[app])) for on in won.values() for app in on}
    used = {gpu for app in before for gpu in state.apps[app].leases}
    fixed = {state.floor.machine_of(gpu) for gpu in used}
    alike: dict[tuple[int, int, int], list[FreeMachine]] = {}
    for machine in goods:
        key = (machine.free, machine.rack, machine.id if machine.id in fixed else -1)
        alike.setdefault(key, []).append(machine)
    places: dict[int, list[int]] = {app: [] for app in before}
    for machines in alike.values():
        for source, target in _matched(won, machines, before):
            _hand_out(won[source.id], target, before, places)
    return {app: tuple(gpus) for app, gpus in places.items()}


def _matched(
    won: ByMachine, machines: Sequence[FreeMachine], before: Mapping[int, set[int]]
) -> list[tuple[FreeMachine, FreeMachine]]:
    sources = [machine for machine in machines if machine.id in won]
    if len(machines) == 1:
        return [(machine, machine) for machine in sources]
    pairs = [
        (-_overlap(won[source.id], target, before), source is not target, place, spot)
        for place, source in enumerate(sources)
        for spot, target in enumerate(machines)
    ]
    matches: dict[int, int] = {}
    for _, _, place, spot in sorted(pairs):
        if place not in matches and spot not in matches.values():
            matches[place] = spot
    return [(sources[place], machines[spot]) for place, spot in sorted(matches.items())]


def _overlap(on: Mapping[int, int], target: FreeMachine, before: Mapping[int, set[int]]) -> int:
    return sum(min(count, len(before[app].intersection(target.gpus))) for app, count in on.items())


def _hand_out(
    on: Mapping[int, int],
    target: FreeMachine,
    before: Mapping[int, set[int]],
    places: Mapping[int, list[int]],
) -> None:
    left = target.ordered()
    own = {app: [gpu for gpu in left if gpu in before[app]][:count] for app, count in on.items()}
    taken = {gpu for gpus in own.values() for gpu in gpus}
    left = [gpu for gpu in left if gpu not in taken]
    for app, count in on.items():
        missing = count - len(own[app])
        places[app] += own[app] + left[:missing]
        left = left[missing:]
