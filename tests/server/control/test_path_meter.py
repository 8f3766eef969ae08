"""What calls cost the path says how many it carries."""

from __future__ import annotations

import pytest

from astrarium.core.quantities import SECOND
from astrarium.server.path_meter import FEWEST, KEPT, PathMeter, PathUse, carried

US = 1000


class Path:
    """A path of two network threads, on which seconds pass."""

    def __init__(self) -> None:
        self.use = PathUse()
        self.now = SECOND
        self.meter = PathMeter(2, lambda: self.use)
        self.meter.look(self.now)

    def second(self, calls: int, network: int, scheduler: int) -> float:
        """Answer calls that cost so many microseconds each."""
        calls_before, network_before, scheduler_before = self.use
        self.use = PathUse(
            calls_before + calls,
            network_before + calls * network * US,
            scheduler_before + calls * scheduler * US,
        )
        self.now += SECOND
        self.meter.look(self.now)
        return self.meter.carries


@pytest.mark.parametrize(("network", "scheduler", "carries"), [(20, 2, 100_000), (20, 20, 50_000)])
def test_the_part_that_is_busiest_says_what_is_carried(network: int, scheduler: int, carries: int) -> None:
    assert carried(PathUse(1000, 1000 * network * US, 1000 * scheduler * US), 2) == carries


def test_the_best_second_of_the_last_minute_counts_and_is_remembered() -> None:
    path = Path()
    assert path.second(FEWEST, 40, 2) == 50_000
    assert path.second(20 * FEWEST, 20, 2) == 100_000
    assert path.second(FEWEST, 40, 2) == 100_000
    for _ in range(1 + KEPT // SECOND):
        carries = path.second(FEWEST, 50, 2)
    assert carries == 40_000
    for _ in range(2 * KEPT // SECOND):
        carries = path.second(0, 0, 0)
    assert carries == 40_000


def test_few_calls_say_nothing() -> None:
    """They cost what waking up for each costs."""
    path = Path()
    assert path.second(FEWEST - 1, 200, 50) == 0
