"""Round robin deals models in turn to groups in turn: the weakest of AlpaServe's ablations (section 6.6)."""

from __future__ import annotations

from typing import Annotated

import msgspec
import numpy as np

from astrarium.placement.groups import GroupRuntime
from astrarium.placement.plan import Plan
from astrarium.placement.policies import Search, placement_policies
from astrarium.placement.policies._search_context import (
    Counting,
    SearchContext,
    SearchProgress,
    grouped,
    plan_of,
)
from astrarium.placement.policies._selection import GroupAssignment
from astrarium.placement.problem import Problem, Shape
from astrarium.placement.simulation import score

Positive = Annotated[int, msgspec.Meta(ge=1)]


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
        progress = SearchProgress(search)
        progress.tried()
        progress.improved(plan)
        return plan


def deal(assignment: GroupAssignment) -> None:
    """Deal models to groups until the group whose turn it is has no room for any model that it lacks."""
    models, turn, group = len(assignment.context.models), 0, 0
    while assignment.groups:
        after = [(turn + step) % models for step in range(models)]
        fitting = next((model for model in after if assignment.fits[group, model]), None)
        if fitting is None:
            return
        assignment.add(group, fitting)
        turn, group = fitting + 1, (group + 1) % len(assignment.groups)
