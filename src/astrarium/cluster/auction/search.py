"""The search finds the best assignment exactly: few are close enough to what prices allow.

With a price on each unit of capacity, every option has a regret: how much less it leaves its bidder than the
option it likes best at these prices. An assignment falls short of the Lagrangian bound by its regrets and by
the price of what it leaves unused, so all that are within some loss of the bound are found by walking through
the bidders with regrets that sum to no more. The loss allowed grows until something within it fits. Partial
assignments with the same pieces are one: identical bidders cost nothing extra.

Ties go to fewer GPUs, then to the earlier bidders, who get the larger gains.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from astrarium.cluster.auction.enumeration import PartialAssignment, all_of_few, are_few
from astrarium.cluster.auction.prices import prices
from astrarium.cluster.auction.program import BILLION, AuctionProgram, BidTable, Ints

FIRST_LOSS = BILLION // 100
GROWTH = 4
COLUMNS = 24  # of each table, for prices
MANY = 2000  # rows of all tables: from so many on, prices are found from some of them
ROUNDS = 3  # in which these are chosen anew
SMALL = 600.0  # states in all: then prices cost more than they save


class SearchEffort(NamedTuple):
    """The work that a search may do; where it is exceeded the answer is good, and `exact` is False.

    *work*: partial assignments looked at for each bidder, times the rows of the capacity; *packings*: the
    best that are tried, one after the other, before more and more are skipped.
    """

    work: int = 100_000
    packings: int = 10

    def less(self) -> SearchEffort:
        """Return the effort for what follows from an answer that is not exact: it cannot be exact either."""
        return SearchEffort(self.work // 8, self.packings // 2)


USUAL = SearchEffort()


class Hint(NamedTuple):
    """What the program for all tells the one without somebody: it saves steps, and changes no exact one."""

    loss: int = FIRST_LOSS  # that is allowed at first
    columns: Sequence[Ints] | None = None  # rows of each table that prices are found from
    rows: Sequence[int] | None = None  # an assignment that fits
    tight: Ints | None = None  # rows of the capacity that are nearly used up
    prices: Ints | None = None  # of these rows, where a walk found nothing that fits: it is not tried again


NO_HINT = Hint()


class Assignment(NamedTuple):
    """A row of each bidder's table, with what they gain together."""

    rows: list[int]  # of each bidder's table
    gain: int
    exact: bool
    loss: int = 0  # how far it falls short of what prices allow: of the best, no further than this
    columns: tuple[Ints, ...] = ()  # rows of each table that prices make attractive
    tight: Ints | None = None  # rows of the capacity that are nearly used up; None: all
    prices: Ints | None = None  # of these rows, where nothing was found by them that fits


class _States(NamedTuple):
    """Partial assignments, those first that give more to earlier bidders."""

    used: Ints
    key: Ints
    gpus: Ints
    loss: Ints


class _Solution(NamedTuple):
    """An assignment that fits, and how far it falls short of what prices allow."""

    rows: list[int]
    loss: int


class _Step(NamedTuple):
    """How the states of a bidder came from those before."""

    parent: NDArray[np.intp]
    row: NDArray[np.intp]


def best(
    program: AuctionProgram, bidders: Sequence[int], effort: SearchEffort = USUAL, hint: Hint = NO_HINT
) -> Assignment:
    """Return the assignment of the largest gain for these bidders."""
    tables = [program.tables[bidder] for bidder in bidders]
    favourites = [0] * len(tables)
    if _fits(program, tables, favourites):
        return _answer(tables, favourites, exact=True)
    return _AssignmentSearch(program, tables, effort, hint).run()


def _fits(program: AuctionProgram, tables: list[BidTable], rows: list[int]) -> bool | None:
    """Return whether the pieces fit. None: nobody knows."""
    weights = sum(table.weights[row] for table, row in zip(tables, rows, strict=True))
    if (weights > program.capacity).any():
        return False
    if program.rows_decide:
        return True
    counts = sum(table.counts[row] for table, row in zip(tables, rows, strict=True))
    return program.packer.fit(tuple(map(int, counts)))


def _answer(tables: list[BidTable], rows: list[int], exact: bool) -> Assignment:
    return Assignment(rows, sum(int(table.gain[row]) for table, row in zip(tables, rows, strict=True)), exact)


class _AssignmentSearch:
    """One search for the best assignment: by listing all where few GPUs are free, and else by walks with a
    loss that is allowed. It goes by the rows of the capacity that are nearly used up, if prices say which."""

    def __init__(
        self, program: AuctionProgram, tables: list[BidTable], effort: SearchEffort, hint: Hint
    ) -> None:
        self._program = program
        self._whole = tables
        self._effort = effort
        self._hint = hint
        self._small = float(np.log1p(program.capacity).sum()) <= log(SMALL)
        self._few = self._small and are_few(tables, program.capacity)
        self._tables = tables
        self._capacity = program.capacity
        self._narrow(hint.tight)
        self._prices = np.zeros_like(self._capacity) if hint.prices is None else hint.prices
        if not self._small and hint.prices is None:
            self._prices, tight = prices(self._tables, self._capacity, hint.columns or self._attractive())
            if hint.tight is None and not program.rows_decide:
                self._prices = self._prices[tight]
                self._narrow(tight)
        self._most = max(1, effort.work // max(1, len(self._capacity) + tables[0].key.shape[1]))
        self._regrets = [self._regret(table) for table in self._tables]
        self._exact = True

    def _attractive(self) -> list[Ints] | None:
        """Return rows of each table that are enough to find prices from: those that prices found from some
        make attractive are added until they are no more. None: all, where they are few."""
        sizes = [len(table.gain) for table in self._tables]
        if sum(sizes) < MANY:
            return None
        columns = [np.unique(np.linspace(0, size - 1, min(size, COLUMNS)).astype(int)) for size in sizes]
        for _ in range(ROUNDS):
            self._prices = prices(self._tables, self._capacity, columns).whole
            best = [np.argsort(self._regret(table), kind="stable")[:COLUMNS] for table in self._tables]
            if all(new[0] in old for new, old in zip(best, columns, strict=True)):
                break
            columns = [np.union1d(new, old) for new, old in zip(best, columns, strict=True)]
        return columns

    def _narrow(self, tight: Ints | None) -> None:
        """Go by these rows of the capacity only."""
        self._tight = tight
        if tight is not None:
            self._tables = [table._replace(weights=table.weights[:, tight]) for table in self._whole]
            self._capacity = self._program.capacity[tight]

    def _regret(self, table: BidTable) -> Ints:
        left: Ints = table.gain - table.weights @ self._prices
        return np.max(left) - left

    def run(self) -> Assignment:
        if self._hint.prices is not None:
            return self._repaired()
        whole = sum(int(regrets.max()) for regrets in self._regrets) + int(self._capacity @ self._prices)
        few = all_of_few(self._tables, self._regrets, self._capacity) if self._few else None
        if few is not None:
            solution = self._first_of(few)
            return self._assignment(solution) if solution is not None else self._otherwise(whole)
        all_at_once = self._small and not self._few
        return self._walked(whole if all_at_once else min(whole, max(FIRST_LOSS, self._hint.loss)), whole)

    def _walked(self, allowed: int, whole: int) -> Assignment:
        """Return the best of what is found with a loss that is allowed; more is, until something fits."""
        solution: _Solution | None = None
        while True:
            solution = _better(self._within(allowed), solution)
            if solution is not None and solution.loss < allowed and not self._exact:
                allowed = solution.loss  # there was too much to look at: no more than this is needed
                continue
            if solution is not None and (solution.loss <= allowed or allowed >= whole or not self._exact):
                return self._assignment(solution)
            if allowed >= whole or not self._exact:  # to allow more would only bring more of the same
                return self._otherwise(allowed)
            allowed = min(whole, GROWTH * allowed, *([] if solution is None else [solution.loss]))

    def _otherwise(self, allowed: int) -> Assignment:
        """Return an assignment where no walk found one that fits."""
        ways = (self._by_all_rows(allowed), self._repaired())
        return min((answer for answer in ways if answer), key=lambda answer: answer.loss)

    def _by_all_rows(self, allowed: int) -> Assignment | None:
        """Return what a walk finds that goes by all rows of the capacity, if the one before went by some."""
        if self._tight is None or self._hint.tight is not None:
            return None
        narrow = self._tables, self._capacity, self._prices, self._most
        self._prices = np.zeros_like(self._program.capacity)
        self._prices[self._tight] = narrow[2]
        self._tables = self._whole
        self._capacity = self._program.capacity
        self._most = max(1, self._effort.work // len(self._capacity))
        solution = self._within(allowed)
        self._tables, self._capacity, self._prices, self._most = narrow
        self._exact = False
        return self._assignment(solution)._replace(prices=self._prices) if solution is not None else None

    def _assignment(self, solution: _Solution) -> Assignment:
        answer = _answer(self._tables, solution.rows, self._exact)
        priced = () if self._small else self._regrets
        near = tuple(np.argsort(regrets, kind="stable")[:COLUMNS] for regrets in priced)
        return answer._replace(loss=solution.loss, columns=near, tight=self._tight)

    def _within(self, allowed: int) -> _Solution | None:
        """Return the best assignment whose regrets are allowed, and its loss: which may be more than that."""
        self._exact = True
        states = self._start()
        steps = []
        for table, regrets in zip(self._tables, self._regrets, strict=True):
            states, step = self._next(states, table, regrets, allowed)
            steps.append(step)
        loss = states.loss + (self._capacity - states.used) @ self._prices
        order = np.lexsort((np.arange(len(loss)), states.gpus, loss))
        for state in self._tried(order):
            rows = _traced(steps, int(state))
            if self._fits(rows):
                return _Solution(rows, int(loss[state]))
        return None

    def _first_of(self, few: list[PartialAssignment]) -> _Solution | None:
        for place in self._tried(range(len(few))):
            rows = list(few[place].rows)
            if self._fits(rows):
                return _Solution(rows, few[place].loss)
        return None

    def _tried(self, order: NDArray[np.intp] | range) -> Iterator[int]:
        """Yield all of the first, then with growing strides: what fits well may be far down the list."""
        place = 0
        while place < len(order):
            yield int(order[place])
            stride = 1 if place < self._effort.packings else 1 + place // 4
            place += stride
            self._exact &= stride == 1

    def _repaired(self) -> Assignment:
        """Return, where nothing tried fits, an assignment known to fit (of nothing, if need be), in which one
        bidder after another has more: of what still fits, what it regrets least."""
        self._exact = False
        rows = list(self._hint.rows or (len(table.gain) - 1 for table in self._tables))
        for bidder in sorted(range(len(rows)), key=lambda bidder: -int(self._tables[bidder].gain[0])):
            before = rows[bidder]
            least = np.argsort(self._regrets[bidder], kind="stable")
            for row in least[: self._effort.packings].tolist():
                rows[bidder] = row
                if row < before and _fits(self._program, self._whole, rows):
                    break
            else:
                rows[bidder] = before
        return self._assignment(_Solution(rows, self._loss(rows)))._replace(prices=self._prices)

    def _loss(self, rows: list[int]) -> int:
        regrets = sum(int(own[row]) for own, row in zip(self._regrets, rows, strict=True))
        used = sum(table.weights[row] for table, row in zip(self._tables, rows, strict=True))
        return regrets + int((self._capacity - used) @ self._prices)

    def _fits(self, rows: list[int]) -> bool:
        fits = _fits(self._program, self._whole, rows)
        self._exact &= fits is not None
        return bool(fits)

    def _start(self) -> _States:
        zero = np.zeros(1, np.int64)
        words = self._tables[0].key.shape[1]
        return _States(
            np.zeros((1, len(self._capacity)), np.int64), np.zeros((1, words), np.int64), zero, zero
        )

    def _next(self, states: _States, table: BidTable, regrets: Ints, allowed: int) -> tuple[_States, _Step]:
        if len(regrets) == 1:  # it can have nothing
            rows = np.zeros(len(states.loss), np.intp)
            return states, _Step(np.arange(len(rows)), rows)
        near = np.flatnonzero(regrets <= allowed)
        loss = states.loss[:, None] + regrets[near]
        parent, column = np.nonzero(loss <= allowed)
        if len(parent) > self._most:
            self._exact = False
            least = _smallest(loss[parent, column], self._most)
            parent = parent[least]
            column = column[least]
        used = states.used[parent] + table.weights[near[column]]
        fits = (used <= self._capacity).all(axis=1)
        parent = parent[fits]
        column = column[fits]
        used = used[fits]
        row = near[column]
        loss = loss[parent, column]
        key = states.key[parent] + table.key[row]
        keep = self._distinct(key, loss)
        gpus = states.gpus[parent] + table.gpus[row]
        return _States(used[keep], key[keep], gpus[keep], loss[keep]), _Step(parent[keep], row[keep])

    def _distinct(self, key: Ints, loss: Ints) -> NDArray[np.intp]:
        """Return, of those with the same pieces, the first that loses least, in their order."""
        order = np.lexsort((loss, *key.T))  # stable: earlier bidders' larger gains stay first
        ordered = key[order]
        first = np.ones(len(order), np.bool_)
        first[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
        return np.sort(order[first])


def _smallest(values: Ints, count: int) -> NDArray[np.intp]:
    """Return where the smallest values are, in order of place; of equal ones, the first."""
    last = np.partition(values, count - 1)[count - 1]
    less = np.flatnonzero(values < last)
    equal = np.flatnonzero(values == last)
    return np.sort(np.concatenate([less, equal[: count - len(less)]]))


def _better(one: _Solution | None, other: _Solution | None) -> _Solution | None:
    return min(
        (solution for solution in (one, other) if solution), key=lambda solution: solution.loss, default=None
    )


def _traced(steps: list[_Step], state: int) -> list[int]:
    rows = []
    for step in reversed(steps):
        rows.append(int(step.row[state]))
        state = int(step.parent[state])
    return rows[::-1]
