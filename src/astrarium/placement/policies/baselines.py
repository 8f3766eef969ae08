"""AlpaServe's baselines search less than it does.

- Selective replication puts replicas on single GPUs where they serve most requests.
- Clockwork++ repeats that at every window, with swaps that cost nothing; its first plan is made here.
- Round robin deals models in turn to groups in turn: the weakest of AlpaServe's ablations (section 6.6).
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import msgspec
import numpy as np

from astrarium.placement.groups.layout import Group
from astrarium.placement.groups.runtime import GroupRuntime
from astrarium.placement.groups.simulation import score
from astrarium.placement.plan import Plan
from astrarium.placement.policies import Search, placement_policies
from astrarium.placement.policies._bucket_search import Positive
from astrarium.placement.policies._search_context import Counting, SearchContext, grouped, plan_of
from astrarium.placement.policies._selection import GroupAssignment, Selected, fast, whole, with_idle
from astrarium.placement.problem import ALONE, Problem, Shape


@placement_policies.register("selective-replication")
class SelectiveReplication:
    """Replicates models over single GPUs; no model is divided."""

    name = "selective-replication"

    class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        selection: Literal["fast", "whole"] = "fast"
        beam: Positive = 1
        memory: Counting = "stage"
        runtime: GroupRuntime = GroupRuntime()

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters

    def place(self, problem: Problem, search: Search) -> Plan:
        context = SearchContext.of(problem, self.parameters.runtime, self.parameters.memory)
        selected = self._replicated(context, search)
        plan = plan_of(self.name, context, selected.groups, selected.served)
        search.improved(plan)
        return plan

    def _replicated(self, context: SearchContext, search: Search) -> Selected:
        if ALONE not in context.tables.kinds:
            return Selected((), 0)
        groups = [Group((gpu.id,), ALONE) for gpu in context.problem.gpus]
        assignment = GroupAssignment(context, groups, np.ones(len(context.models), bool))
        chosen = self.parameters
        select = fast if chosen.selection == "fast" else partial(whole, beam=chosen.beam)
        return with_idle(context, select(assignment, context.workload, search))


@placement_policies.register("clockwork++")
class ClockworkPlus(SelectiveReplication):
    """Replicates like selective replication, as Clockwork++ does at the start of every window."""

    name = "clockwork++"


@placement_policies.register("round-robin")
class RoundRobin:
    """Each group takes the next model that it has room for, until one finds none."""

    class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        stages: Positive = 4
        operators: Positive = 1
        memory: Counting = "stage"
        runtime: GroupRuntime = GroupRuntime()

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters

    def place(self, problem: Problem, search: Search) -> Plan:
        context = SearchContext.of(problem, self.parameters.runtime, self.parameters.memory)
        shape = Shape(self.parameters.stages, self.parameters.operators)
        known = [group for group in grouped(problem.gpus, shape) if group.shape in context.tables.kinds]
        assignment = GroupAssignment(context, known, np.ones(len(context.models), bool))
        deal(assignment)
        served = score(assignment.layout, context.workload).served if known else 0
        plan = plan_of("round-robin", context, assignment.selected(assignment.hosts, served).groups, served)
        search.tried()
        search.improved(plan)
        return plan


def deal(assignment: GroupAssignment) -> None:
    """Deal models to groups until the group whose turn it is has no room for any model that it lacks."""
    models = len(assignment.context.models)
    turn = 0
    group = 0
    while assignment.groups:
        after = [(turn + step) % models for step in range(models)]
        fitting = next((model for model in after if assignment.fits[group, model]), None)
        if fitting is None:
            return
        assignment.add(group, fitting)
        turn = fitting + 1
        group = (group + 1) % len(assignment.groups)
