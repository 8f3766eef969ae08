"""Workload 2 of Themis is successive halving.

Its apps are those of workload 1, with the same arrival, model and budget. That an iteration takes 80 to 120%
of the median one is ours, as in the example of section 4.3.3.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import msgspec

from astrarium.cluster.contract import Job
from astrarium.cluster.workloads.apps import DrawnApp
from astrarium.core.random_streams import stream

CONFIGURATIONS = (4, 8, 16, 32)
MOST_GPUS_HALVING = 8
FIRST_ITERATIONS = 25 / 3  # a phase's budget for each of its first jobs: rounded down, that is 8
ITERATION_SPREAD = 0.2


def halving(apps: Iterable[DrawnApp], seed: int = 1) -> tuple[DrawnApp, ...]:
    """Return each app's work as a budget of successive halving: half of the jobs go on, twice as long."""
    return tuple(_halved(app, seed) for app in apps)


def iterations_of_phases(jobs: int) -> list[int]:
    """Return the iterations of each phase: equal parts of the budget, what is left to the last (4.3.3)."""
    phases = jobs.bit_length()
    budget = round(FIRST_ITERATIONS * jobs * phases)
    rounds = [budget // (phases * (jobs >> phase)) for phase in range(phases - 1)]
    return [*rounds, budget - sum(iterations * (jobs >> phase) for phase, iterations in enumerate(rounds))]


def _halved(app: DrawnApp, seed: int) -> DrawnApp:
    random = stream(seed, "themis", "halving", app.id)
    count = CONFIGURATIONS[int(random.integers(len(CONFIGURATIONS)))]
    rounds = iterations_of_phases(count)
    usual = app.work / sum(iterations * (count >> phase) for phase, iterations in enumerate(rounds))
    factors = random.uniform(1 - ITERATION_SPREAD, 1 + ITERATION_SPREAD, count).tolist()
    times = [max(1, round(usual * factor)) for factor in factors]
    best_first = random.permutation(count).tolist()
    numbers = itertools.count()
    model = app.phases[0][0].model
    phases = tuple(
        tuple(
            # it can use twice as many GPUs as in the phase before
            Job(
                next(numbers),
                iterations * times[place],
                1,
                min(1 << phase, MOST_GPUS_HALVING),
                model,
                None,
                iterations,
            )
            for place in sorted(best_first[: count >> phase])
        )
        for phase, iterations in enumerate(rounds)
    )
    return msgspec.structs.replace(app, phases=phases, kind="halving")
