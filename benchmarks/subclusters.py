"""Sub-clusters: 800 models over 20, the time it takes, and the balance against a random search of equal time.

As in Symphony's Appendix A.2: models drawn from the zoo, rates from an exponential distribution. The zoo
has no sizes, so each of its models gets one between 20 and 600 MiB.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from _measure import Row, main
from astrarium.core.quantities import SECOND
from astrarium.core.random_streams import stream
from astrarium.serving import zoo
from astrarium_papers.symphony._subclusters import (
    Division,
    Limits,
    Member,
    Subclusters,
    divide,
    random_search,
)

MODELS = 800
PARTS = 20
BAR = 10.0  # seconds of CPU
GPU = "A100"
BATCH = 8
MIB = 2**20


class Timed(NamedTuple):
    cpu_s: float
    division: Division


def measure(repeats: int) -> list[Row]:
    fresh = [task(seed) for seed in range(repeats)]
    divisions = [timed(lambda problem=problem: divide(problem)) for problem in fresh]
    rivals = [
        random_for(problem, of.cpu_s, seed)
        for seed, (problem, of) in enumerate(zip(fresh, divisions, strict=True))
    ]
    rows = described(f"{MODELS} models over {PARTS}", divisions, BAR) + described("random search", rivals)
    for what, limits in (("20 models", Limits(moved=20)), ("5 % of the load", Limits(moved_load=0.05))):
        changed = [
            an_hour_later(problem, of.division, limits, seed)
            for seed, problem, of in zip(range(repeats), fresh, divisions, strict=True)
        ]
        later = [timed(lambda problem=problem: divide(problem)) for problem in changed]
        rows += described(f"an hour later, {what} may move", later, BAR)
    return rows


def task(seed: int) -> Subclusters:
    chance = stream(seed, "subclusters")
    names = zoo.models(GPU)
    sizes = {name: int(chance.integers(20, 600)) * MIB for name in names}
    members = []
    for number in range(MODELS):
        name = names[int(chance.integers(len(names)))]
        rate = float(chance.exponential(100))
        load = rate * batch_time(name) / BATCH / SECOND
        members.append(Member(f"{name}-{number}", rate, sizes[name], load))
    return Subclusters(tuple(members), PARTS)


def batch_time(name: str) -> int:
    profile = zoo.lookup(GPU, name).profile
    return profile.alpha * BATCH + profile.beta


def an_hour_later(before: Subclusters, division: Division, limits: Limits, seed: int) -> Subclusters:
    """Every rate has changed, by a factor whose logarithm is normal with a deviation of a half."""
    factors = stream(seed, "changes").lognormal(0.0, 0.5, len(before.members)).tolist()
    members = tuple(
        msgspec.structs.replace(
            member, rate=member.rate * factor, load=member.balanced_load * factor, today=today
        )
        for member, factor, today in zip(before.members, factors, division.assignment, strict=True)
    )
    return Subclusters(members, before.parts, limits)


def random_for(problem: Subclusters, cpu_s: float, seed: int) -> Timed:
    """Search by as many draws as fit in that time, judged by a first few."""
    sample = 500
    pace = timed(lambda: draw(problem, sample, seed)).cpu_s / sample
    return timed(lambda: draw(problem, max(1, int(cpu_s / pace)), seed))


def draw(problem: Subclusters, tries: int, seed: int) -> Division:
    division = random_search(problem, tries, stream(seed, "random search"))
    assert division is not None  # nothing is limited
    return division


def timed(work: Callable[[], Division]) -> Timed:
    start = time.process_time()
    division = work()
    return Timed(time.process_time() - start, division)


def described(what: str, runs: list[Timed], bar: float | None = None) -> list[Row]:
    return [
        Row(f"{what}: CPU", "s", [run.cpu_s for run in runs], bar, less_is_better=True),
        Row(f"{what}: imbalance of load", "%", [100 * run.division.load_imbalance for run in runs]),
        Row(f"{what}: imbalance of memory", "%", [100 * run.division.memory_imbalance for run in runs]),
        Row(f"{what}: looked at", "", [float(run.division.tried) for run in runs]),
    ]


if __name__ == "__main__":
    main(measure, 5)
