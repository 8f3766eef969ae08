"""What calls cost the path says how many it carries."""

from __future__ import annotations

import pytest

from astrarium.core.quantities import SECOND
from astrarium.server.path_meter import KEPT, PathMeter, PathThreads, PathUse

US = 1000


class Path:
    """A path of two network threads, two for texts and four of their library, on which seconds pass."""

    def __init__(self) -> None:
        self.use = PathUse()
        self.now = SECOND
        self.meter = PathMeter(lambda: PathThreads(2, 2, 4), lambda: self.use)
        self.meter.look(self.now)

    def second(self, calls: int, *costs: int) -> float:
        """Read and answer calls that cost so many microseconds each."""
        return self.spend(PathUse(calls, calls, *(calls * cost * US for cost in costs or (0, 2))))

    def spend(self, spent: PathUse) -> float:
        self.use = PathUse(*(before + new for before, new in zip(self.use, spent, strict=True)))
        self.now += SECOND
        self.meter.look(self.now)
        return self.meter.carries


@pytest.mark.parametrize(
    ("costs", "carries"),
    [
        ((20, 2), 100_000),
        ((20, 20), 50_000),
        ((40, 10, 200), 5000),
        ((20, 2, 0, 100), 20_000),
        ((20, 2, 0, 30, 400), 10_000),
    ],
)
def test_the_thread_that_has_most_to_do_says_what_is_carried(costs: tuple[int, ...], carries: int) -> None:
    assert Path().second(10_000, *costs) == carries


def test_a_second_that_only_reads_or_only_answers_promises_nothing() -> None:
    """10,000 calls are read in one second and answered in the next: that is no path for 50,000."""
    path = Path()
    assert path.spend(PathUse(accepted=10_000, network=500_000 * US)) == 0
    assert path.spend(PathUse(answered=10_000, network=200_000 * US)) == 0
    assert path.spend(PathUse(5000, 10_000, 200_000 * US)) == 50_000


def test_the_best_second_of_the_last_minute_counts_and_is_remembered() -> None:
    path = Path()
    assert path.second(5000, 40) == 50_000
    assert path.second(20_000, 20) == 100_000
    assert path.second(5000, 40) == 100_000
    for _ in range(1 + KEPT // SECOND):
        carries = path.second(5000, 50)
    assert carries == 40_000
    for _ in range(2 * KEPT // SECOND):
        carries = path.second(0, 0)
    assert carries == 40_000


@pytest.mark.parametrize(
    ("calls", "network", "carries"), [(1000, 190, 0), (1000, 200, 10_000), (99, 9000, 0), (0, 0, 0)]
)
def test_a_second_with_little_to_do_says_nothing(calls: int, network: int, carries: int) -> None:
    """A call costs what waking up for it costs; large ones are work, however few they are."""
    assert Path().second(calls, network) == carries
