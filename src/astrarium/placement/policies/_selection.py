"""AlpaServe's Algorithm 1 chooses which models go on which groups: whole (with a beam), or fast."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from astrarium.placement.groups.layout import Group, GroupLayout, Hosts, Ints
from astrarium.placement.groups.simulation import Score, SimulatedRequests, score
from astrarium.placement.policies import Search
from astrarium.placement.policies._search_context import Bools, SearchContext, capacities


@dataclass(frozen=True)
class Selected:
    """A selection holds groups with their models, and how many counted requests they answer in time."""

    groups: tuple[Group, ...]
    served: int


class GroupAssignment:
    """An assignment says which models are on which groups, and which others would still fit.

    *among* are the models that may be placed.
    """

    def __init__(self, context: SearchContext, groups: Sequence[Group], among: Bools) -> None:
        self.context = context
        self.groups = groups
        empty = [Group(group.gpus, group.shape) for group in groups]
        self.layout = GroupLayout.of(context.tables, empty)
        kind = self.layout.kind
        self.weights = context.weights[kind]  # [group, model, stage]
        self.free = capacities(groups, context.problem.gpus, context.weights.shape[2])
        self.possible = context.useful[kind] & among
        self.fits = self.possible & (self.weights <= self.free[:, None]).all(2)

    @property
    def hosts(self) -> Hosts:
        return self.layout.hosts

    def add(self, group: int, model: int) -> None:
        self.hosts[group, model] = 1
        self.possible[group, model] = False
        self.free[group] -= self.weights[group, model]
        self.fits[group] = self.possible[group] & (self.weights[group] <= self.free[group]).all(1)

    def exchange(self, group: int, gone: int, come: int) -> None:
        """Place the model *come* on a group instead of the model *gone* (-1: none)."""
        if gone >= 0:
            self.hosts[group, gone] = 0
            self.possible[group, gone] = True
            self.free[group] += self.weights[group, gone]
        self.add(group, come)

    def with_model(self, group: int, model: int) -> GroupAssignment:
        """Return a copy that has one model more on a group."""
        other = object.__new__(GroupAssignment)
        other.__dict__.update(self.__dict__)
        other.layout = replace(self.layout, hosts=self.hosts.copy())
        other.free, other.possible, other.fits = self.free.copy(), self.possible.copy(), self.fits.copy()
        other.add(group, model)
        return other

    def selected(self, hosts: Hosts, served: int) -> Selected:
        indices = [model.index for model in self.context.models]
        placed = [tuple(indices[place] for place in np.flatnonzero(row)) for row in hosts]
        pairs = zip(self.groups, placed, strict=True)
        return Selected(tuple(Group(group.gpus, group.shape, models) for group, models in pairs), served)

    def candidates(self) -> Iterator[tuple[int, int]]:
        """Yield groups and models that fit; of groups that are alike, only the first."""
        seen: set[bytes] = set()
        for group, row in enumerate(self.fits):
            look = (
                self.layout.kind[group].tobytes() + self.hosts[group].tobytes() + self.free[group].tobytes()
            )
            if look not in seen:
                seen.add(look)
                yield from ((group, int(model)) for model in np.flatnonzero(row))


def assignment_of(context: SearchContext, groups: Sequence[Group]) -> GroupAssignment:
    """Return the assignment of *groups* with their models, to which any other model may be added."""
    assignment = GroupAssignment(context, groups, np.ones(len(context.models), bool))
    for number, group in enumerate(groups):
        for model in group.models:
            assignment.add(number, context.tables.place[model])
    return assignment


def with_idle(context: SearchContext, selected: Selected) -> Selected:
    """Place models without requests too, where there is room: that costs no request."""
    if not selected.groups:
        return selected
    assignment = assignment_of(context, selected.groups)
    work = score(assignment.layout, context.workload).work.astype(np.float64)
    for model in np.flatnonzero((context.workload.totals == 0) & (assignment.hosts.sum(0) == 0)).tolist():
        if assignment.fits[:, model].any():
            assignment.add(int(np.where(assignment.fits[:, model], work, np.inf).argmin()), model)
    return assignment.selected(assignment.hosts, selected.served)


def fast(assignment: GroupAssignment, workload: SimulatedRequests, search: Search) -> Selected:
    """Add the model with most unserved requests to the idlest group with room, one simulation a step."""
    best = assignment.hosts.copy()
    best_served = -1
    while True:
        scored = score(assignment.layout, workload)
        if scored.served > best_served:
            best = assignment.hosts.copy()
            best_served = scored.served
        if not search.tried() or not _add_where_needed(assignment, workload.totals, scored):
            break
    if search.on and _fill(assignment, workload.totals, scored):
        filled = score(assignment.layout, workload).served
        if filled >= best_served:
            best = assignment.hosts.copy()
            best_served = filled
    return assignment.selected(best, best_served)


def _add_where_needed(assignment: GroupAssignment, totals: Ints, scored: Score) -> bool:
    wanted = np.where(assignment.fits.any(0), totals - scored.good, 0)
    model = int(wanted.argmax())
    if wanted[model] <= 0:
        return False
    work = np.where(assignment.fits[:, model], scored.work.astype(np.float64), np.inf)
    assignment.add(int(work.argmin()), model)
    return True


def _fill(assignment: GroupAssignment, totals: Ints, scored: Score) -> bool:
    """Use memory that is left for requests that are not known yet.

    Models with the most requests for a replica have another one, on the idlest group.
    """
    work = scored.work.astype(np.float64)
    request_work = scored.work.sum() / max(1, totals.sum())
    added = False
    while True:
        share = np.where(assignment.fits.any(0), totals / (assignment.hosts.sum(0) + 1), 0)
        model = int(share.argmax())
        if share[model] <= 0:
            return added
        group = int(np.where(assignment.fits[:, model], work, np.inf).argmin())
        assignment.add(group, model)
        work[group] += share[model] * request_work
        added = True


def whole(
    assignment: GroupAssignment, workload: SimulatedRequests, search: Search, beam: int = 1
) -> Selected:
    """Simulate every model on every group at each step, and keep the best few (*beam*)."""
    assignments = [assignment]
    best = assignment.selected(assignment.hosts, 0)
    while assignments:
        tried = [(addition, one) for one in assignments for addition in _scored(one, workload, search)]
        ranked = _distinct(sorted(tried, key=lambda pair: -pair[0][0]), beam)
        assignments = [one.with_model(group, model) for (_, group, model), one in ranked]
        if ranked and ranked[0][0][0] > best.served:
            best = assignments[0].selected(assignments[0].hosts, ranked[0][0][0])
        if not search.on:
            break
    return best


Tried = tuple[int, int, int]  # served, group, model


def _scored(assignment: GroupAssignment, workload: SimulatedRequests, search: Search) -> Iterator[Tried]:
    for group, model in assignment.candidates():
        assignment.hosts[group, model] = 1
        served = score(assignment.layout, workload).served
        assignment.hosts[group, model] = 0
        yield served, group, model
        if not search.tried():
            return


def _distinct(ranked: list[tuple[Tried, GroupAssignment]], beam: int) -> list[tuple[Tried, GroupAssignment]]:
    """Return the best few, without those that place the same models in another order."""
    kept: list[tuple[Tried, GroupAssignment]] = []
    seen: set[bytes] = set()
    for (served, group, model), assignment in ranked:
        hosts = assignment.hosts.copy()
        hosts[group, model] = 1
        if hosts.tobytes() not in seen:
            seen.add(hosts.tobytes())
            kept.append(((served, group, model), assignment))
        if len(kept) == beam:
            break
    return kept
