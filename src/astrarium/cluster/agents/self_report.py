"""An app reports once how much work it has and how much slower it gets where its GPUs are apart.

A report is a set of factors over what is true, so that apps can be honest, wrong about themselves, or liars.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from astrarium.cluster.machines import Spread
from astrarium.cluster.slowdowns import Slowdowns


class SelfReport(NamedTuple):
    """What an app says of itself, over what is true; all ones: it says the truth. *work* is that of its jobs;
    *near* and *apart* how much slower they get on one machine and on several."""

    work: float = 1.0
    near: float = 1.0
    apart: float = 1.0


class ReportedSlowdowns:
    """S as an app reports it. Being apart makes no app faster, whatever it reports."""

    def __init__(self, known: Slowdowns, network: str, report: SelfReport) -> None:
        self._known = known
        self._network = network
        self._report = report
        self._known_slowdowns: dict[tuple[str, Spread], float] = {}

    def of(self, model: str, spread: Spread) -> float:
        slowdown = self._known_slowdowns.get((model, spread))
        if slowdown is None:
            known = self._known.of(model, self._network, spread)
            report = self._report
            slowdown = known * report.near if spread <= Spread.MACHINE else max(1.0, known * report.apart)
            self._known_slowdowns[model, spread] = slowdown
        return slowdown


HONEST = SelfReport()
LEAST_FACTOR = 0.01


def erring(error: float, chance: Iterator[float]) -> SelfReport:
    """Return a report off by up to *error* either way, in work and S; *chance* has numbers from 0 to 1."""
    work, apart = (1.0 + error * (2.0 * next(chance) - 1.0) for _ in range(2))
    return SelfReport(work=max(LEAST_FACTOR, work), apart=max(LEAST_FACTOR, apart))


def lying(report: SelfReport, lie: float, near: bool = False) -> SelfReport:
    """Return a report that overstates what being apart costs or, *near*, understates what one machine
    does."""
    if near:
        return report._replace(near=max(LEAST_FACTOR, report.near * (1.0 - lie)))
    return report._replace(apart=report.apart * (1.0 + lie))
