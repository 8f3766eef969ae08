"""Assignments of next to nothing: where few GPUs are free, one by one takes less time than arrays do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import add, gt
from typing import NamedTuple

from astrarium.cluster.auction.program import Ints, Table

STATES = 12  # ways to use up what is free
ROWS = 8  # of a table


class Assigned(NamedTuple):
    """To the bidders so far: what they lose and use, and the row of each. `key` tells pieces apart."""

    loss: int
    gpus: int
    used: tuple[int, ...]
    key: tuple[int, ...]
    rows: tuple[int, ...]


class _Row(NamedTuple):
    regret: int
    gpus: int
    weights: list[int]
    key: list[int]


def are_few(tables: Sequence[Table], room: Ints) -> bool:
    states = 1
    for each in room.tolist():
        states *= each + 1
    return states <= STATES and max(len(table.gain) for table in tables) <= ROWS


def all_of_few(tables: Sequence[Table], regrets: Sequence[Ints], room: Ints) -> list[Assigned]:
    """The best first; of those with the same pieces the one that loses least, and of these the first."""
    there, limit = [_nothing(tables[0], room)], room.tolist()
    for table, own in zip(tables, regrets, strict=True):
        rows = list(_rows(table, own))
        found: dict[tuple[int, ...], Assigned] = {}
        for one in _with_each(there, rows, limit):
            other = found.get(one.key)
            if other is None or one.loss < other.loss:
                found.pop(one.key, None)  # it takes its own place in the order
                found[one.key] = one
        there = list(found.values())
    return sorted(there, key=lambda each: each[:2])


def _nothing(table: Table, room: Ints) -> Assigned:
    return Assigned(0, 0, (0,) * len(room), (0,) * table.key.shape[1], ())


def _rows(table: Table, regrets: Ints) -> Iterator[_Row]:
    columns = (each.tolist() for each in (regrets, table.gpus, table.weights, table.key))
    return map(_Row, *columns)


def _with_each(there: list[Assigned], rows: list[_Row], limit: list[int]) -> Iterator[Assigned]:
    for loss, gpus, used, key, before in there:
        for number, (regret, more, weights, own) in enumerate(rows):
            after = tuple(map(add, used, weights))
            if not any(map(gt, after, limit)):
                yield Assigned(
                    loss + regret, gpus + more, after, tuple(map(add, key, own)), (*before, number)
                )
