"""The brackets of Hyperband (Li et al., JMLR 2018): many candidates for a short time, few for long."""

from __future__ import annotations

from typing import NamedTuple

from astrarium.tuning.search._rungs import totals


class Bracket(NamedTuple):
    candidates: int
    rungs: list[int]  # totals, in iterations


def brackets(iterations: int, eta: int) -> list[Bracket]:
    """The one with most candidates first."""
    rungs = totals(1, iterations, eta)
    most = len(rungs) - 1
    return [Bracket(-(-(most + 1) * eta**s // (s + 1)), rungs[most - s :]) for s in range(most, -1, -1)]
