"""The best configuration of a group: of all replications and batch sizes, the one that serves most.

Among those that serve the same, the fewest GPUs, then the first: fewer replicas and smaller batches come
first, and what the first model of the group does changes last.
"""

from __future__ import annotations

from collections.abc import Sequence

from astrarium.serving.placement.policies._requirements import Needs
from astrarium.serving.placement.policies._usher_board import Board, Choice, placing_order
from astrarium.serving.placement.registry import Search

Placed = list[tuple[Choice, list[int]]]  # GPUs of the replicas
MULTIPLES = range(1, 7)  # Usher's replication factors, in times the fewest GPUs that serve the load


def fewest_replicas(needs: Needs) -> int:
    """With the largest batches that keep the SLO."""
    return needs.replicas(needs.usable[-1])


def choices(needs: Needs, most: int | None) -> list[Choice]:
    """Replicas beyond those that serve the load are never placed, so they make no further choice."""
    if not needs.usable:
        return []
    factors = [multiple * fewest_replicas(needs) for multiple in MULTIPLES]
    allowed = [factor for factor in factors if most is None or factor <= most]
    distinct = {
        (min(factor, needs.replicas(option)), option.batch): option
        for factor in allowed
        for option in needs.usable
    }
    return [Choice(needs, option, replicas) for (replicas, _), option in sorted(distinct.items())]


class GroupSearch:
    """Tries configurations in order, and leaves out what cannot serve more than the best so far."""

    def __init__(self, board: Board, members: Sequence[Sequence[Choice]], search: Search, most: int) -> None:
        self.start, self.members, self.search, self.left = board, members, search, most
        best = [max(choice.goodput for choice in each) for each in members]
        self.rest = [sum(best[depth:]) for depth in range(len(members) + 1)]
        self.best: tuple[int, int] = (-1, 0)  # goodput, and GPUs in use, less is better
        self.board, self.placed = board, Placed()

    def run(self) -> GroupSearch:
        self._descend([], 0)
        return self

    def _descend(self, chosen: list[Choice], promised: int) -> None:
        depth = len(chosen)
        if self.left <= 0 or promised + self.rest[depth] < self.best[0]:
            return
        if depth == len(self.members):
            self._try(chosen)
            return
        for choice in self.members[depth]:
            self._descend([*chosen, choice], promised + choice.goodput)

    def _try(self, chosen: list[Choice]) -> None:
        self.left = self.left - 1 if self.search.tried(1) else 0
        board = self.start.copy()
        placed = [(choice, board.put(choice)) for choice in placing_order(chosen)]
        serves = sum(choice.of(len(gpus)) for choice, gpus in placed)
        if (serves, -board.used()) > self.best:
            self.best, self.board, self.placed = (serves, -board.used()), board, placed
