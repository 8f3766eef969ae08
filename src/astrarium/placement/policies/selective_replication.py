"""Selective replication: every GPU for itself, replicas where they answer most requests. AlpaServe's
baseline.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

import msgspec
import numpy as np

from astrarium.placement.groups import Group, Runtime
from astrarium.placement.plan import Plan
from astrarium.placement.policies import Search, placement_policies
from astrarium.placement.policies._ground import Counting, Going, Ground, plan_of
from astrarium.placement.policies._selection import Board, Selected, fast, whole, with_idle
from astrarium.placement.problem import ALONE, Problem
from astrarium.placement.timeline import Source, Timeline, read_window, replanned


@placement_policies.register("selective-replication")
class SelectiveReplication:
    """Replicates models over single GPUs; no model is divided."""

    class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        selection: Literal["fast", "whole"] = "fast"
        beam: Annotated[int, msgspec.Meta(ge=1)] = 1
        memory: Counting = "stage"
        runtime: Runtime = Runtime()

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters

    def place(self, problem: Problem, search: Search) -> Plan:
        ground = Ground.of(problem, self.parameters.runtime, self.parameters.memory)
        going = Going(search)
        found = replicate(ground, self.parameters.selection, self.parameters.beam, going)
        plan = plan_of("selective-replication", ground, found.groups, found.served)
        going.improved(plan)
        return plan


def replicate(ground: Ground, selection: str, beam: int, going: Going) -> Selected:
    if ALONE not in ground.tables.kinds:
        return Selected((), 0)
    groups = [Group((gpu.id,), ALONE) for gpu in ground.problem.gpus]
    board = Board(ground, groups, np.ones(len(ground.models), bool))
    select = fast if selection == "fast" else partial(whole, beam=beam)
    return with_idle(ground, select(board, ground.workload, going))


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
        runtime: Runtime = Runtime()

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        self.window = read_window(parameters.window)

    def place(self, problem: Problem, search: Search) -> Plan:
        """For all of the time at once: where it starts."""
        return self._plan(problem, Going(search))

    def timeline(self, problem: Problem, search: Search) -> Timeline:
        going = Going(search)
        place, source = partial(self._plan, going=going), self.parameters.plan_with
        return replanned(place, problem, self.window, source, lambda: going.on)

    def _plan(self, problem: Problem, going: Going) -> Plan:
        ground = Ground.of(problem, self.parameters.runtime, self.parameters.memory)
        found = replicate(ground, self.parameters.selection, self.parameters.beam, going)
        plan = plan_of("clockwork++", ground, found.groups, found.served)
        going.improved(plan)
        return plan
