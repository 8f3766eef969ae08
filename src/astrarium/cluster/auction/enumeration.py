"""Where few GPUs are free all assignments are listed: one by one takes less time than arrays do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from operator import add, gt
from typing import NamedTuple

from astrarium.cluster.auction.program import BidTable, Ints

STATES = 12  # ways to use up what is free
ROWS = 8  # of a table
HELD = 500  # assignments at a time: pieces that weigh nothing where room is short multiply without end


class PartialAssignment(NamedTuple):
    """Rows for the bidders so far, with what these lose and use. `key` tells pieces apart."""

    loss: int
    gpus: int
    used: tuple[int, ...]
    key: tuple[int, ...]
    rows: tuple[int, ...]


class _OptionRow(NamedTuple):
    regret: int
    gpus: int
    weights: list[int]
    key: list[int]


def are_few(tables: Sequence[BidTable], capacity: Ints) -> bool:
    return prod((capacity + 1).tolist()) <= STATES and max(len(table.gain) for table in tables) <= ROWS


def all_of_few(
    tables: Sequence[BidTable], regrets: Sequence[Ints], capacity: Ints
) -> list[PartialAssignment] | None:
    """Return all assignments, the best first; of those with the same pieces, the first that loses least.
    None: they are not few after all."""
    there = [PartialAssignment(0, 0, (0,) * len(capacity), (0,) * tables[0].key.shape[1], ())]
    limit = capacity.tolist()
    for table, own in zip(tables, regrets, strict=True):
        rows = list(_rows(table, own))
        by_key: dict[tuple[int, ...], PartialAssignment] = {}
        for one in _with_each(there, rows, limit):
            other = by_key.get(one.key)
            if other is None or one.loss < other.loss:
                by_key.pop(one.key, None)  # it takes its own place in the order
                by_key[one.key] = one
        there = list(by_key.values())
        if len(there) > HELD:
            return None
    return sorted(there, key=lambda one: one[:2])


def _rows(table: BidTable, regrets: Ints) -> Iterator[_OptionRow]:
    columns = (column.tolist() for column in (regrets, table.gpus, table.weights, table.key))
    return map(_OptionRow, *columns)


def _with_each(
    there: list[PartialAssignment], rows: list[_OptionRow], limit: list[int]
) -> Iterator[PartialAssignment]:
    for loss, gpus, used, key, before in there:
        for number, (regret, more, weights, own) in enumerate(rows):
            after = tuple(map(add, used, weights))
            if not any(map(gt, after, limit)):
                yield PartialAssignment(
                    loss + regret, gpus + more, after, tuple(map(add, key, own)), (*before, number)
                )
