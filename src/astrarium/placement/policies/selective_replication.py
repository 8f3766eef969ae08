"""Selective replication, AlpaServe's baseline, puts replicas on GPUs where they serve most requests."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

import msgspec
import numpy as np

from astrarium.placement.groups import Group, GroupRuntime
from astrarium.placement.plan import Plan
from astrarium.placement.policies import Search, placement_policies
from astrarium.placement.policies._search_context import Counting, SearchContext, SearchProgress, plan_of
from astrarium.placement.policies._selection import GroupAssignment, Selected, fast, whole, with_idle
from astrarium.placement.problem import ALONE, Problem
from astrarium.placement.timeline import Source, Timeline, read_window, replanned


@placement_policies.register("selective-replication")
class SelectiveReplication:
    """Replicates models over single GPUs; no model is divided."""

    class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        selection: Literal["fast", "whole"] = "fast"
        beam: Annotated[int, msgspec.Meta(ge=1)] = 1
        memory: Counting = "stage"
        runtime: GroupRuntime = GroupRuntime()

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters

    def place(self, problem: Problem, search: Search) -> Plan:
        context = SearchContext.of(problem, self.parameters.runtime, self.parameters.memory)
        progress = SearchProgress(search)
        found = replicate(context, self.parameters.selection, self.parameters.beam, progress)
        plan = plan_of("selective-replication", context, found.groups, found.served)
        progress.improved(plan)
        return plan


def replicate(context: SearchContext, selection: str, beam: int, progress: SearchProgress) -> Selected:
    if ALONE not in context.tables.kinds:
        return Selected((), 0)
    groups = [Group((gpu.id,), ALONE) for gpu in context.problem.gpus]
    assignment = GroupAssignment(context, groups, np.ones(len(context.models), bool))
    select = fast if selection == "fast" else partial(whole, beam=beam)
    return with_idle(context, select(assignment, context.workload, progress))


# Clockwork++: selective replication, thought over at every window, with swaps that cost nothing.


@placement_policies.register("clockwork++")
class ClockworkPlus:
    """Selective replication again at every window; swapping is free."""

    class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        window: str = "60s"
        plan_with: Source = "window"
        selection: Literal["fast", "whole"] = "fast"
        beam: Annotated[int, msgspec.Meta(ge=1)] = 1
        memory: Counting = "stage"
        runtime: GroupRuntime = GroupRuntime()

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        self.window = read_window(parameters.window)

    def place(self, problem: Problem, search: Search) -> Plan:
        """Place for all of the time at once: where it starts."""
        return self._plan(problem, SearchProgress(search))

    def timeline(self, problem: Problem, search: Search) -> Timeline:
        progress = SearchProgress(search)
        place, source = partial(self._plan, progress=progress), self.parameters.plan_with
        return replanned(place, problem, self.window, source, lambda: progress.on)

    def _plan(self, problem: Problem, progress: SearchProgress) -> Plan:
        context = SearchContext.of(problem, self.parameters.runtime, self.parameters.memory)
        found = replicate(context, self.parameters.selection, self.parameters.beam, progress)
        plan = plan_of("clockwork++", context, found.groups, found.served)
        progress.improved(plan)
        return plan
