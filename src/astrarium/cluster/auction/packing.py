"""Packing decides which machine takes which piece.

Pieces that may go anywhere and whose sizes divide each other (1, 2, 4, 8) fit wherever there are places
enough of each size, whatever lies beside them: they come last, and need no search. The others are searched
for: those without a choice first, then the largest, each where it fits most tightly and leaves places enough
for all that are still to come (`Slack`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from astrarium.cluster.auction.capacity import PieceNeed, fitting
from astrarium.cluster.auction.goods import MachineClass


class Bin(NamedTuple):
    """Machines of one class with as many free GPUs are one bin: they are all the same."""

    free: int
    kind: int  # the class of machines


class Slack:
    """The places left for pieces to come: a number for each set of classes and size, none below 0."""

    def __init__(self, needs: Sequence[PieceNeed], classes: Sequence[MachineClass]) -> None:
        self._needs = needs
        self.bins: dict[Bin, int] = {
            Bin(kind.free, number): len(kind.members) for number, kind in enumerate(classes)
        }
        self._sets = sorted({frozenset(range(len(classes))), *(need.classes for need in needs)}, key=sorted)
        self._sizes = sorted({need.gpus for need in needs})
        self._changes: dict[tuple[int, Bin], list[tuple[int, int]]] = {}
        free = [[bin_.free if bin_.kind in inside else 0 for bin_ in self.bins] for inside in self._sets]
        needed = [[need.gpus if need.classes <= inside else 0 for need in needs] for inside in self._sets]
        self._there = self._places(free, len(self.bins)) @ np.array([*self.bins.values()], np.int64)
        self._taken = self._places(needed, len(needs))

    def _places(self, gpus: Sequence[Sequence[int]], count: int) -> NDArray[np.int64]:
        """Return how many places of each size there are in so many GPUs of *count* bins or pieces, which each
        set has a row of."""
        rows = np.array(gpus, np.int64).reshape(len(gpus), 1, count)
        places: NDArray[np.int64] = rows // np.array(self._sizes, np.int64)[:, None]
        return places.reshape(len(gpus) * len(self._sizes), count)

    def start(self, counts: Sequence[int]) -> list[int]:
        """Return the slack with nothing placed, and so many pieces of each need to come."""
        slack: list[int] = (self._there - self._taken @ np.array(counts, np.int64)).tolist()
        return slack

    def change(self, number: int, bin_: Bin) -> list[tuple[int, int]]:
        """Return what a piece of a need in a bin changes: places in the list, and how much more."""
        known = self._changes.get((number, bin_))
        if known is None:
            known = self._changes[number, bin_] = self._reckoned(self._needs[number], bin_)
        return known

    def _reckoned(self, need: PieceNeed, bin_: Bin) -> list[tuple[int, int]]:
        free = bin_.free
        changes = []
        for outer, inside in enumerate(self._sets):
            mine = need.classes <= inside
            for inner, size in enumerate(self._sizes if bin_.kind in inside else ()):
                more = (need.gpus // size if mine else 0) - (free // size - (free - need.gpus) // size)
                if more:
                    changes.append((outer * len(self._sizes) + inner, more))
        return changes


STEPS = 200  # back and forth; after that, what is next in value is tried instead


class Packer:
    """The packer answers many questions about the same pieces and machines, and remembers its answers."""

    def __init__(self, needs: Sequence[PieceNeed], classes: Sequence[MachineClass]) -> None:
        self._needs = needs
        self._classes = classes
        self._answers: dict[tuple[int, ...], bool | None] = {}

    def fit(self, counts: tuple[int, ...]) -> bool | None:
        """Return whether so many pieces of each need fit. None: the search was given up."""
        if counts not in self._answers:
            search = self._search(counts)
            self._answers[counts] = search.run() or (None if search.given_up else False)
        return self._answers[counts]

    def packed(self, counts: Sequence[int]) -> list[list[int]] | None:
        """Return the machines of each need, one for each of its pieces. None: they do not fit, or the search
        was given up."""
        search = self._search(counts)
        if not search.run():
            return None
        last = [(number, None) for number in self._easy for _ in range(counts[number])]
        return self._machines([*search.placed(), *last])

    def _search(self, counts: Sequence[int]) -> _PackingSearch:
        pieces = [number for number in self._order for _ in range(counts[number])]
        return _PackingSearch(self._slack, self._needs, pieces, self._slack.start(counts))

    @cached_property
    def _slack(self) -> Slack:
        return Slack(self._needs, self._classes)

    @cached_property
    def _easy(self) -> list[int]:
        """Return the needs that come last, the largest first."""
        free = [n for n, need in enumerate(self._needs) if need.classes == fitting(need.gpus, self._classes)]
        chain: list[int] = []
        for number in sorted(free, key=lambda number: self._needs[number].gpus):
            if not chain or self._needs[number].gpus % self._needs[chain[-1]].gpus == 0:
                chain.append(number)
        return chain[::-1]

    @cached_property
    def _order(self) -> list[int]:
        choice = [sum(len(self._classes[kind].members) for kind in need.classes) for need in self._needs]
        hard = [number for number in range(len(self._needs)) if number not in self._easy]
        return sorted(hard, key=lambda n: (choice[n] > 1, -self._needs[n].gpus, choice[n], n))

    def _machines(self, pieces: Iterable[tuple[int, Bin | None]]) -> list[list[int]]:
        """Return machines for pieces that have bins, or (None) where they fit most tightly."""
        there: dict[Bin, list[int]] = {}
        for number, machine_class in enumerate(self._classes):
            there[Bin(machine_class.free, number)] = list(machine_class.members[::-1])
        machines: list[list[int]] = [[] for _ in self._needs]
        for number, place in pieces:
            gpus = self._needs[number].gpus
            bin_ = place or min(bin_ for bin_, left in there.items() if left and bin_.free >= gpus)
            machine = there[bin_].pop()
            there.setdefault(Bin(bin_.free - gpus, bin_.kind), []).append(machine)
            machines[number].append(machine)
        return machines


class _PackingSearch:
    """A search for bins, piece by piece; *slack* is what is left for those to come and those that come
    last."""

    def __init__(self, table: Slack, needs: Sequence[PieceNeed], pieces: list[int], slack: list[int]) -> None:
        self._table = table
        self._needs = needs
        self._pieces = pieces
        self._slack = slack
        self._bins = dict(table.bins)
        self._where: list[Bin] = []
        self._hopeless: set[tuple[int, frozenset[tuple[Bin, int]]]] = set()
        self.given_up = False

    def placed(self) -> list[tuple[int, Bin]]:
        return list(zip(self._pieces, self._where, strict=True))

    def run(self) -> bool:
        """Search depth first without recursion, as pieces may be many; `tries` has what is left to try."""
        if min(self._slack, default=0) < 0:
            return False
        tries = [self._choices()]
        steps = 0
        while len(self._where) < len(self._pieces):
            place = next(tries[-1], None)
            if place is not None:
                self._put(place)
                tries.append(self._choices())
                continue
            steps += 1
            self._hopeless.add(self._position())
            tries.pop()
            self.given_up = steps > STEPS
            if not tries or self.given_up:
                return False
            self._take_back()
        return True

    def _choices(self) -> Iterator[Bin]:
        """Yield the bins that the next piece may go to, the one with the fewest free GPUs first. Whenever the
        next is asked for, the slack is as it was."""
        if self._hopeless and self._position() in self._hopeless:
            return
        number = self._pieces[len(self._where)]
        slack = self._slack
        gpus = self._needs[number].gpus
        kinds = self._needs[number].classes
        for bin_ in sorted(bin_ for bin_ in self._bins if bin_.free >= gpus and bin_.kind in kinds):
            if all(slack[place] + more >= 0 for place, more in self._table.change(number, bin_)):
                yield bin_

    def _position(self) -> tuple[int, frozenset[tuple[Bin, int]]]:
        return len(self._where), frozenset(self._bins.items())

    def _put(self, bin_: Bin) -> None:
        number = self._pieces[len(self._where)]
        for place, more in self._table.change(number, bin_):
            self._slack[place] += more
        self._move(bin_, Bin(bin_.free - self._needs[number].gpus, bin_.kind))
        self._where.append(bin_)

    def _take_back(self) -> None:
        bin_ = self._where.pop()
        number = self._pieces[len(self._where)]
        for place, more in self._table.change(number, bin_):
            self._slack[place] -= more
        self._move(Bin(bin_.free - self._needs[number].gpus, bin_.kind), bin_)

    def _move(self, before: Bin, after: Bin) -> None:
        bins = self._bins
        if bins[before] == 1:
            del bins[before]
        else:
            bins[before] -= 1
        bins[after] = bins.get(after, 0) + 1
