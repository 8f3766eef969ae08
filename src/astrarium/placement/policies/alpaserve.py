"""AlpaServe (Li et al., OSDI 2023, section 4.2) places models on groups of GPUs with a simulator's help.

Algorithm 2 tries ways to divide models and GPUs; Algorithm 1 chooses the models of each group. Settled by us:
- the fast form of Algorithm 1 keeps the best it has seen, not the last;
- a bucket ends where the next larger model takes more than 1.38 times as long (the authors' constant);
- all shapes are tried with the first part of the requests, and only the best few with all of them;
- a model goes on a group only if a lone request would be answered in time there.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Annotated, Literal

import msgspec
import numpy as np

from astrarium.placement.groups.runtime import GroupRuntime
from astrarium.placement.groups.simulation import Score, score
from astrarium.placement.plan import Plan
from astrarium.placement.policies import Search, placement_policies
from astrarium.placement.policies import _selection as selection
from astrarium.placement.policies._bucket_search import BucketLimits, BucketSearch, Positive, Select
from astrarium.placement.policies._search_context import Counting, SearchContext, plan_of
from astrarium.placement.policies._selection import GroupAssignment, Selected
from astrarium.placement.problem import Problem

# Models with the most unserved requests, and replicas that may make room on a group, those that are missed
# least first: a narrow look finds most, a wide one the rest.
LOOKS = ((12, 4), (1000, 1000))

Move = tuple[int, int, int]  # a group, the model that goes (-1: none) and the model that comes


def refined(context: SearchContext, start: Selected, tries: int, search: Search) -> Selected:
    """Exchange single replicas while that answers more requests in time, with at most *tries* simulations.

    The first exchange that is better is taken.
    """
    assignment = selection.assignment_of(context, start.groups)
    current = score(assignment.layout, context.workload)
    left = tries
    for look in LOOKS:
        while left > 0 and search.on:
            better, used = _first_better(assignment, current, look, left, search)
            left -= used
            if better is None:
                break
            current = better
    return assignment.selected(assignment.hosts, current.served) if current.served > start.served else start


def _first_better(
    assignment: GroupAssignment, current: Score, look: tuple[int, int], tries: int, search: Search
) -> tuple[Score | None, int]:
    """Make the first exchange that is better; return its score and the number of simulations used."""
    used = 0
    for move in islice(moves(assignment, current, *look), tries):
        used += 1
        tried = _with(assignment, move)
        if tried.served > current.served:
            assignment.exchange(*move)
            return tried, used
        if not search.tried():
            break
    return None, used


def _with(assignment: GroupAssignment, move: Move) -> Score:
    group, gone, come = move
    kept = assignment.hosts[group].copy()
    assignment.hosts[group, come] = 1
    if gone >= 0:
        assignment.hosts[group, gone] = 0
    scored = score(assignment.layout, assignment.context.workload)
    assignment.hosts[group] = kept
    return scored


def moves(assignment: GroupAssignment, scored: Score, wanted: int, given_up: int) -> Iterator[Move]:
    """Yield exchanges: the most wanted models first, on the idlest groups, for those missed least."""
    unserved = assignment.context.workload.totals - scored.good
    replicas = assignment.hosts.sum(0, dtype=np.int64)
    missed = scored.good / np.maximum(replicas, 1)
    idlest = np.argsort(scored.work, kind="stable").tolist()
    for come in np.argsort(-unserved, kind="stable")[:wanted].tolist():
        if unserved[come] > 0:
            for group in idlest:
                if assignment.possible[group, come]:
                    leaving = _who_may_go(assignment, group, come, missed.tolist())[:given_up]
                    yield from ((group, gone, come) for gone in leaving)


def _who_may_go(assignment: GroupAssignment, group: int, come: int, missed: list[float]) -> list[int]:
    if assignment.fits[group, come]:
        return [-1]
    free = assignment.free[group] - assignment.weights[group, come]
    hosted = np.flatnonzero(assignment.hosts[group]).tolist()
    enough = [model for model in hosted if (free + assignment.weights[group, model] >= 0).all()]
    return sorted(enough, key=lambda model: (missed[model], model))


@placement_policies.register("alpaserve")
class AlpaServe:
    """Places models on groups of GPUs that share pipelines, guided by a simulator."""

    class Parameters(BucketLimits, frozen=True, forbid_unknown_fields=True):
        """*selection*: one simulation a step, or all choices (with a *beam*). *memory*: each stage counts for
        itself, or as much as the model's largest stage, as the authors count. *refine*: so many simulations
        may be spent at the end on exchanging single replicas of each of the best few (*refined*) placements;
        the paper has no such step."""

        selection: Literal["fast", "whole"] = "fast"
        beam: Positive = 1
        refine: Annotated[int, msgspec.Meta(ge=0)] = 300
        refined: Positive = 4
        memory: Counting = "stage"
        runtime: GroupRuntime = GroupRuntime()

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters

    def place(self, problem: Problem, search: Search) -> Plan:
        context = SearchContext.of(problem, self.parameters.runtime, self.parameters.memory)

        def report(selected: Selected) -> None:
            search.improved(plan_of("alpaserve", context, selected.groups, selected.served))

        leaders = BucketSearch(context, self.parameters, self._select(), search, report).run()
        best = leaders[0] if leaders else Selected((), 0)
        for leader in leaders[: self.parameters.refined]:
            better = refined(context, leader, self.parameters.refine, search)
            if better.served > best.served:
                best = better
                report(best)
        best = selection.with_idle(context, best)
        return plan_of("alpaserve", context, best.groups, best.served)

    def _select(self) -> Select:
        chosen = self.parameters
        return selection.fast if chosen.selection == "fast" else partial(selection.whole, beam=chosen.beam)
