"""What a decision of the tuning policy `astrarium` costs: 500 trials on 64 GPUs, until all have ended."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))  # what all benchmarks share

from _measure import Row, main
from astrarium.core.choice import made
from astrarium.core.engine import Engine
from astrarium.core.quantities import SECOND, Time
from astrarium.run.simulate import simulate
from astrarium.tuning.contract import Action, Event, GpusChanged, GroupArrived, Trial
from astrarium.tuning.policies import tuning_policies
from astrarium.tuning.runtime import Runtime
from astrarium.tuning.state import TuningState
from astrarium.tuning.world import TuningWorld

GPUS = 64
TRIALS = 500
BAR = 50.0  # ms of CPU, on the mean
REAL = Runtime(SECOND, 1.34, 1.35)


class Timed:
    """A policy whose decisions are timed, without what the engine does with their actions."""

    def __init__(self) -> None:
        self._policy = made(tuning_policies.get("astrarium"), None)
        self.spent: list[float] = []

    def decide(self, now: Time, events: Sequence[Event], state: TuningState) -> Iterator[Action]:
        spent = 0.0
        began = time.process_time()
        for action in self._policy.decide(now, events, state):
            spent += time.process_time() - began
            yield action
            began = time.process_time()
        self.spent.append(spent + time.process_time() - began)


def one_group() -> list[tuple[Time, Event]]:
    trials = tuple(Trial(n, 0, n, 5 + n * 37 % 60) for n in range(TRIALS))
    return [(0, GroupArrived(0, trials))]


def several_groups() -> list[tuple[Time, Event]]:
    """Open at the same time: each result counts."""
    trials = [Trial(n, n % 5, n, 5 + n * 37 % 60, n % 3) for n in range(TRIALS)]
    return [(0, GroupArrived(group, tuple(trials[group::5]))) for group in range(5)]


def decided(arrivals: list[tuple[Time, Event]]) -> list[float]:
    """Return the milliseconds of every decision."""
    policy = Timed()
    engine: Engine[Any, Any, Any] = Engine(TuningState(SECOND, REAL), policy)
    simulate(engine, [(0, GpusChanged(tuple(range(GPUS)))), *arrivals], TuningWorld(lambda _: REAL, SECOND))
    return [1000 * seconds for seconds in policy.spent]


def measure(repeats: int) -> list[Row]:
    rows = []
    for what, arrivals in (("one group", one_group()), ("five groups at once", several_groups())):
        repeated = [decided(arrivals) for _ in range(repeats)]
        called = f"a tuning decision, {TRIALS} trials in {what} on {GPUS} GPUs"
        means = [sum(times) / len(times) for times in repeated]
        first = [max(times) for times in repeated]
        rows.append(Row(f"{called}: mean", "ms CPU", means, BAR, less_is_better=True))
        rows.append(Row(f"{called}: longest", "ms CPU", first, less_is_better=True))
    return rows


if __name__ == "__main__":
    main(measure, repeats=3)
