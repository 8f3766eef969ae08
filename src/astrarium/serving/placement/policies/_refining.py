"""After the greedy choice: exchange single replicas as long as that answers more requests in time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from astrarium.serving.placement.policies._ground import Going, Ground
from astrarium.serving.placement.policies._selection import Board, Selected, board_of
from astrarium.serving.placement.simulation import Score, score

# Models with the most unserved requests, and replicas that may make room on a group, those that are missed
# least first: a narrow look finds most, a wide one the rest.
LOOKS = ((12, 4), (1000, 1000))

Move = tuple[int, int, int]  # a group, the model that goes (-1: none) and the model that comes


def refined(ground: Ground, start: Selected, tries: int, going: Going) -> Selected:
    """At most *tries* simulations; the first exchange that is better is taken."""
    board = board_of(ground, start.groups)
    found = score(board.layout, ground.workload)
    left = tries
    for look in LOOKS:
        while left > 0 and going.on:
            better, used = _first_better(board, found, look, left, going)
            left -= used
            if better is None:
                break
            found = better
    return board.selected(board.hosts, found.served) if found.served > start.served else start


def _first_better(
    board: Board, found: Score, look: tuple[int, int], tries: int, going: Going
) -> tuple[Score | None, int]:
    """The exchange is made on the board. With the number of simulations it took."""
    used = 0
    for move in islice(moves(board, found, *look), tries):
        used += 1
        tried = _with(board, move)
        if tried.served > found.served:
            board.exchange(*move)
            return tried, used
        if not going.tried():
            break
    return None, used


def _with(board: Board, move: Move) -> Score:
    group, gone, come = move
    kept = board.hosts[group].copy()
    board.hosts[group, come] = 1
    if gone >= 0:
        board.hosts[group, gone] = 0
    found = score(board.layout, board.ground.workload)
    board.hosts[group] = kept
    return found


def moves(board: Board, found: Score, wanted: int, given_up: int) -> Iterator[Move]:
    """The most wanted models first, on the idlest groups first, instead of who is missed least."""
    unserved = board.ground.workload.totals - found.good
    replicas = board.hosts.sum(0, dtype=np.int64)
    missed = found.good / np.maximum(replicas, 1)
    idlest = np.argsort(found.work, kind="stable").tolist()
    for come in np.argsort(-unserved, kind="stable")[:wanted].tolist():
        if unserved[come] > 0:
            for group in idlest:
                if board.possible[group, come]:
                    leaving = _who_may_go(board, group, come, missed.tolist())[:given_up]
                    yield from ((group, gone, come) for gone in leaving)


def _who_may_go(board: Board, group: int, come: int, missed: list[float]) -> list[int]:
    if board.fits[group, come]:
        return [-1]
    free = board.free[group] - board.weights[group, come]
    hosted = np.flatnonzero(board.hosts[group]).tolist()
    enough = [model for model in hosted if (free + board.weights[group, model] >= 0).all()]
    return sorted(enough, key=lambda model: (missed[model], model))
