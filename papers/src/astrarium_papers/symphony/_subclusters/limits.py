"""What stands in the way of a division, and what would make it possible."""

from __future__ import annotations

import math
from typing import NoReturn

import msgspec
import numpy as np

from astrarium.core.errors import InputError
from astrarium.core.quantities import write_bytes, write_rate
from astrarium_papers.symphony._subclusters import Limits, Subclusters, rounds
from astrarium_papers.symphony._subclusters.figures import ROUNDING, Figures, Places
from astrarium_papers.symphony._subclusters.swaps import Swaps

# Larger programs are not asked for the least: of moves, which is easy, and of room, which is hard.
MOVING_CHOICES = 4_000
PACKING_CHOICES = 100


def check_each(task: Subclusters) -> None:
    """Check what one can tell without a search: each model, and all of them."""
    limits = task.limits
    members = task.members
    if limits.memory is not None:
        for member in members:
            if member.memory + member.runtime > limits.memory:
                _refuse_memory(limits.memory, member.memory + member.runtime, f"{member.name} alone needs it")
        total = sum(member.memory for member in members)
        if total > limits.memory * task.parts:
            _refuse_memory(
                limits.memory, -(-total // task.parts), _shared("models", task.parts, limits.memory, total)
            )
    if limits.rate is not None:
        for member in members:
            if member.rate > limits.rate:
                _refuse_rate(limits.rate, member.rate, f"{member.name} alone gets it")
        rate = math.fsum(member.rate for member in members)
        if rate > limits.rate * task.parts * (1 + ROUNDING):
            _refuse_rate(limits.rate, rate / task.parts, _shared("requests", task.parts, limits.rate, rate))


def rescued(figures: Figures, closest: Places, nodes: int) -> Places:
    """Return the division with the fewest moves where the search found nothing; else say what is missing."""
    kept = _with_few_moves(figures, nodes) if figures.bounded_moves else None
    if kept is None:
        _refuse_limits(figures, closest, nodes)
    return kept


def _with_few_moves(figures: Figures, nodes: int) -> Places | None:
    """Return a division with few moves; None where nothing was found, however much moved."""
    free = Figures(msgspec.structs.replace(figures.task, limits=_without_moves(figures)))
    assignment, proven = _moved_least(free, figures, nodes)
    if assignment is None or not free.allowed(assignment):
        return None
    if not figures.few_moves(assignment):
        _refuse_moves(figures, assignment, proven)
    return assignment


def _refuse_moves(figures: Figures, assignment: Places, proven: bool) -> NoReturn:
    moved = figures.moved(assignment)
    share = math.fsum(figures.load[moved]) / (figures.total_load or 1.0)
    count = int(moved.sum())
    tight = figures.task.limits
    words = f"{count} models with {share:.3g} of the load" + (", and no less" if proven else "")
    expected = f"more moves: the limits of rate and memory can be kept by moving {words}"
    if tight.moved is not None and count > tight.moved:
        raise InputError("limits.moved", tight.moved, expected)
    raise InputError("limits.moved_load", tight.moved_load, expected)


def _moved_least(free: Figures, figures: Figures, nodes: int) -> tuple[Places | None, bool]:
    """Return a division within the limits of the parts, near to today's; and whether none is nearer."""
    start = np.where(figures.today >= 0, figures.today, 0)
    if len(start) * free.parts <= MOVING_CHOICES:
        cost = figures.load / figures.mean_load if figures.moved_limit == math.inf else np.ones(len(start))
        solved = rounds.least_moves(free, start, cost, nodes)
        return solved.assignment, solved.optimal
    swaps = Swaps(free, start, 0)
    swaps.run_until_allowed()
    return swaps.assignment, False


def _refuse_limits(figures: Figures, closest: Places, nodes: int) -> NoReturn:
    """With the limits that the closest division would need, it would be possible: it is the proof."""
    if len(closest) * figures.parts <= PACKING_CHOICES:
        assignment = rounds.least_limits(figures, closest, nodes).assignment
        if assignment is not None and figures.excess(assignment) < figures.excess(closest):
            closest = assignment
    needed = int(figures.needed_memory(closest).max())
    memory = figures.task.limits.memory
    why = "what the best division that was assignment needs of its fullest sub-cluster"
    if memory is not None and needed > memory:
        _refuse_memory(memory, needed, why)
    _refuse_rate(figures.rate_limit, float(figures.sums(figures.rate, closest).max()), why)


def _without_moves(figures: Figures) -> Limits:
    return msgspec.structs.replace(figures.task.limits, moved=None, moved_load=None)


def _shared(what: str, parts: int, limit: float, total: float) -> str:
    more = math.ceil(total / limit) if limit else math.inf
    return f"or {more} sub-clusters: all {what} have to go into these {parts}"


def _refuse_memory(limit: int, needed: int, why: str) -> NoReturn:
    raise InputError("limits.memory", write_bytes(limit), f"at least {write_bytes(needed)}: {why}")


def _refuse_rate(limit: float, needed: float, why: str) -> NoReturn:
    raise InputError("limits.rate", write_rate(limit), f"at least {write_rate(needed)}: {why}")
