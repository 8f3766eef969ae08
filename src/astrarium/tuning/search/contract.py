"""The contract of search algorithms: generators that yield what they want to know, and are sent results.

A search speaks of totals: how many iterations a candidate shall have trained for in all. What is run is the
difference to what it has: a candidate that goes on does so from its checkpoint.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from typing import Protocol, TypeAlias

import msgspec


class Want(msgspec.Struct, frozen=True, gc=False):
    """Train the candidate until it has *total* iterations, as a member of a group."""

    candidate: int
    group: int
    total: int


class Wanted(msgspec.Struct, frozen=True):
    """*each*: go on with every result that comes; else once all are there. What was wanted before and has not
    come yet is still wanted."""

    trials: tuple[Want, ...]
    each: bool = False


Results: TypeAlias = Mapping[int, float | None]  # by candidate; None: it failed, and is never promoted
Course: TypeAlias = Generator[Wanted, Results, None]


class Pool(Protocol):
    """The candidates of a search, as its algorithm sees them."""

    workers: int  # GPUs that there are now

    def group(self) -> int:
        """A number for a new group."""

    def new(self) -> int | None:
        """A candidate that the sampler suggests; None where it has no more."""

    def copy(self, source: int, seed: int) -> int:
        """A candidate that begins with the checkpoint of another, and with values a little different."""

    def stop(self, candidates: Iterable[int]) -> None:
        """They are wanted no more: others were better."""

    def complete(self, candidates: Iterable[int]) -> None:
        """They had all that the search gives to anyone."""

    def ranked(self, results: Results) -> list[int]:
        """The best first, equals by number; without those that failed."""


class Search(Protocol):
    def run(self, pool: Pool) -> Course: ...


def drawn(pool: Pool, count: int) -> list[int]:
    """New candidates: fewer where the sampler has no more."""
    found: list[int] = []
    while len(found) < count and (candidate := pool.new()) is not None:
        found.append(candidate)
    return found


def wants(group: int, candidates: Iterable[int], total: int) -> tuple[Want, ...]:
    return tuple(Want(candidate, group, total) for candidate in candidates)
