"""The highest rate at which a server still answers 99 % of the requests in time, by bisection."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field

from load import Result, offer
from peers.peer import Running, until_quiet

TARGET = 0.99
SMALLEST = 5.0  # requests/s: a server that does not carry this has no goodput to speak of
TRIES = 3  # of a run that the generator spoiled


@dataclass(frozen=True)
class Plan:
    """How a rate is tried and how closely goodput is searched."""

    seconds: float = 8.0
    warmup: float = 1.0
    tolerance: float = 0.02
    repeats: int = 3
    slo_ms: float = 25.0


USUAL = Plan()


@dataclass(frozen=True)
class Goodput:
    rates: list[float]  # one for each repetition
    runs: list[Result] = field(repr=False)

    @property
    def median(self) -> float:
        return statistics.median(self.rates)

    @property
    def unusable(self) -> int:
        """Runs that the generator spoiled even when they were tried again; they count all the same."""
        return sum(not run.usable for run in self.runs)


def goodput(server: Running, guess: float, plan: Plan = USUAL) -> Goodput:
    """Each repetition has arrivals of its own, and begins where the last one ended."""
    rates: list[float] = []
    runs: list[Result] = []
    for seed in range(1, plan.repeats + 1):
        search = Search(server, plan, seed)
        rates.append(search.run(rates[-1] if rates and rates[-1] > 0 else guess, 1.1 if rates else 1.4))
        runs += search.runs
    return Goodput(rates, runs)


class Search:
    """One repetition: widen until one rate passes and one fails, then halve the gap between them."""

    def __init__(self, server: Running, plan: Plan, seed: int) -> None:
        self._server = server
        self._plan = plan
        self._seed = seed
        self.runs: list[Result] = []

    def run(self, rate: float, step: float) -> float:
        passed = 0.0
        failed = math.inf
        while failed > passed * (1 + self._plan.tolerance):
            if self.passes(rate):
                passed = rate
            else:
                failed = rate
            if failed < SMALLEST:
                return 0.0
            rate = self._next(passed, failed, step)
        return passed

    @staticmethod
    def _next(passed: float, failed: float, step: float) -> float:
        if math.isinf(failed):
            return passed * step
        return math.sqrt(passed * failed) if passed else failed / step

    def passes(self, rate: float) -> bool:
        run = usable(self._server, rate, self._plan, self._seed)
        self.runs.append(run)
        return run.in_time_share >= TARGET


def usable(server: Running, rate: float, plan: Plan, seed: int) -> Result:
    """Offer a rate to a server at rest; once more if the generator could not keep its own plan."""
    for _ in range(TRIES):
        until_quiet(server)
        run = offer(server.url, server.templates, rate, plan.seconds, plan.slo_ms, seed, plan.warmup)
        if run.usable:
            break
    return run
