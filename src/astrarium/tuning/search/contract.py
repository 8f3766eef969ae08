"""Search algorithms are generators that yield the trials they want, and are sent results.

A search speaks of totals: how many iterations a candidate shall have trained for in all. A trial runs the
difference to what the candidate has: it goes on from its checkpoint.
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


class WantedTrials(msgspec.Struct, frozen=True):
    """A search wants these trials. *each*: it goes on with every result that comes, else once all are there.
    Trials that were wanted before and have not ended are still wanted."""

    trials: tuple[Want, ...]
    each: bool = False


Results: TypeAlias = Mapping[int, float | None]  # by candidate; None: it failed, and is never promoted
Course: TypeAlias = Generator[WantedTrials, Results, None]


class Pool(Protocol):
    """The pool holds the candidates of a search, as its algorithm sees them."""

    workers: int  # GPUs that there are now

    def group(self) -> int:
        """Return a number for a new group."""

    def new(self) -> int | None:
        """Return a candidate that the sampler suggests; None where it has no more."""

    def copy(self, source: int, seed: int) -> int:
        """Return a candidate with the checkpoint of another, and with slightly different values."""

    def stop(self, candidates: Iterable[int]) -> None:
        """Stop candidates because others were better."""

    def complete(self, candidates: Iterable[int]) -> None:
        """End candidates that trained for as long as the search lets anyone."""

    def ranked(self, results: Results) -> list[int]:
        """Return candidates, the best first and equals by number, without those that failed."""


class Search(Protocol):
    def run(self, pool: Pool) -> Course: ...


def drawn(pool: Pool, count: int) -> list[int]:
    """Draw new candidates: fewer where the sampler has no more."""
    found: list[int] = []
    while len(found) < count and (candidate := pool.new()) is not None:
        found.append(candidate)
    return found


def wants(group: int, candidates: Iterable[int], total: int) -> tuple[Want, ...]:
    return tuple(Want(candidate, group, total) for candidate in candidates)
