"""Round robin: models in turn on groups in turn. The weakest of AlpaServe's ablations (section 6.6)."""

from __future__ import annotations

from typing import Annotated

import msgspec
import numpy as np

from astrarium.placement.groups import Runtime
from astrarium.placement.plan import Plan
from astrarium.placement.policies import Search, placement_policies
from astrarium.placement.policies._ground import Counting, Going, Ground, grouped, plan_of
from astrarium.placement.policies._selection import Board
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
        runtime: Runtime = Runtime()

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters

    def place(self, problem: Problem, search: Search) -> Plan:
        ground = Ground.of(problem, self.parameters.runtime, self.parameters.memory)
        shape = Shape(self.parameters.stages, self.parameters.operators)
        known = [group for group in grouped(problem.gpus, shape) if group.shape in ground.tables.kinds]
        board = Board(ground, known, np.ones(len(ground.models), bool))
        deal(board)
        served = score(board.layout, ground.workload).served if known else 0
        plan = plan_of("round-robin", ground, board.selected(board.hosts, served).groups, served)
        going = Going(search)
        going.tried()
        going.improved(plan)
        return plan


def deal(board: Board) -> None:
    """Ends when the group whose turn it is has no room for any model that it lacks."""
    models, turn, group = len(board.ground.models), 0, 0
    while board.groups:
        after = [(turn + step) % models for step in range(models)]
        fitting = next((model for model in after if board.fits[group, model]), None)
        if fitting is None:
            return
        board.add(group, fitting)
        turn, group = fitting + 1, (group + 1) % len(board.groups)
