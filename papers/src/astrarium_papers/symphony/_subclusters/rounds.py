"""Which programs are solved: the whole where it is small, else one after another over a few models."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from astrarium_papers.symphony._subclusters import Effort
from astrarium_papers.symphony._subclusters.figures import NOWHERE, Figures, Floats, Places
from astrarium_papers.symphony._subclusters.program import Program, Solved

PARTS_A_ROUND = 3
MODELS_A_ROUND = 18
CHOICES_A_ROUND = 500


class Search(NamedTuple):
    assignment: Places  # the best that was met, the one it began with included
    nodes: int  # of all programs that were solved for it
    optimal: bool  # proven


def whole(figures: Figures, start: Places, nodes: int) -> Search:
    """Search all assignments at once."""
    program = Program(figures, start, np.arange(len(start)), np.arange(figures.parts))
    program.balance()
    if (figures.today == NOWHERE).all():
        program.number_parts_by_their_largest()
    solved = program.solve(nodes)
    better = solved.assignment is not None and figures.merit(solved.assignment) < figures.merit(start)
    chosen = solved.assignment if better and solved.assignment is not None else start
    proven = solved.optimal and solved.assignment is not None and figures.allowed(solved.assignment)
    return Search(chosen, solved.nodes, figures.allowed(chosen) and (proven or solved.infeasible))


def by_rounds(figures: Figures, start: Places, effort: Effort) -> Search:
    """Again and again, some models are divided anew: nodes bound no root, so the programs must be small."""
    best = start
    spent = 0
    for number in range(effort.rounds):
        if number == 0 and figures.bounded_moves:
            parts = np.arange(figures.parts)
            free = _worth_moving(figures, best)
        else:
            parts = _worst_parts(figures, best)
            free = _some_models(best, parts, number)
        program = Program(figures, best, free, parts)
        program.balance()
        solved = program.solve(effort.round_nodes)
        spent += solved.nodes
        if solved.assignment is not None and figures.merit(solved.assignment) < figures.merit(best):
            best = solved.assignment
    return Search(best, spent, False)


def _worth_moving(figures: Figures, start: Places) -> Places:
    """Models that leave home in *start*, or would, in part, if they could be cut; the largest, if many."""
    program = Program(figures, start, np.arange(len(start)), np.arange(figures.parts))
    program.balance()
    movable = np.union1d(np.flatnonzero(figures.moved(start)), program.cut_up())
    by_load = movable[np.argsort(-figures.load[movable], kind="stable")]
    return np.sort(by_load[: CHOICES_A_ROUND // figures.parts])


def least_moves(figures: Figures, start: Places, cost: Floats, nodes: int) -> Solved:
    """Move as little as the limits of the parts allow, by what moving each model costs."""
    program = Program(figures, start, np.arange(len(start)), np.arange(figures.parts))
    program.count_moves(cost)
    return program.solve(nodes)


def least_limits(figures: Figures, start: Places, nodes: int) -> Solved:
    """Exceed the limits of rate and memory as little as can be, in shares of them."""
    program = Program(figures, start, np.arange(len(start)), np.arange(figures.parts))
    program.stretch_limits()
    return program.solve(nodes)


def _worst_parts(figures: Figures, assignment: Places) -> Places:
    """Return the fullest and the emptiest part, of load and of memory."""
    load = figures.sums(figures.load, assignment) / figures.mean_load
    memory = figures.sums(figures.memory, assignment) / figures.mean_memory
    # ties go to the part with the smaller number
    chosen = [int(np.argmax(load)), int(np.argmax(memory)), int(np.argmin(load)), int(np.argmin(memory))]
    by_distance = np.argsort(-(np.abs(load - 1) + figures.weight * np.abs(memory - 1)), kind="stable")
    parts = list(dict.fromkeys([*chosen, *by_distance.tolist()]))[:PARTS_A_ROUND]
    return np.array(sorted(parts), np.int64)


def _some_models(assignment: Places, parts: Places, number: int) -> Places:
    """Return other models in every round: each part gives every so-manieth of its models."""
    share = MODELS_A_ROUND // len(parts)
    chosen = []
    for part in parts:
        inside = np.flatnonzero(assignment == part)
        stride = max(1, len(inside) // share)
        chosen.append(np.roll(inside, -number)[::stride][:share])
    return np.sort(np.concatenate(chosen))
