"""Best effort beside a client that wants throughput: how much of the time it is given."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from astrarium import _gate as gate

MS = 1_000_000
LIMIT = 0.1


def shared(duration: Callable[[float], float], requests: int = 2000) -> list[tuple[float, int, int]]:
    """A client whose requests take *duration* of best effort's duty: (duty, duration, pace) of each."""
    throttle = gate.Throttle(0.2)
    pace = 0
    requests_done = []
    for _ in range(requests):
        duty = throttle.duty
        took = round(duration(duty))
        pace = throttle.step(pace, LIMIT, took)
        requests_done.append((duty, took, pace))
    return requests_done


def slowdown(requests_done: list[tuple[float, int, int]], alone: float) -> float:
    later = requests_done[len(requests_done) // 2 :]
    return sum(took for _, took, _ in later) / len(later) / alone


@pytest.mark.parametrize("harm", [0.3, 1.0, 3.0])
def test_the_client_keeps_its_pace_up_to_the_limit_and_best_effort_gets_the_rest(harm: float) -> None:
    requests_done = shared(lambda duty: 20 * MS * (1 + harm * duty))
    assert 1 + 0.6 * LIMIT < slowdown(requests_done, 20 * MS) <= 1 + LIMIT
    assert requests_done[-1][2] == pytest.approx(20 * MS, rel=0.01)


def test_requests_that_vary_do_not_hide_what_best_effort_costs() -> None:
    """Were the pace learnt beside best effort, it would creep up, and the client with it."""
    chance = Random(1)
    requests_done = shared(lambda duty: 20 * MS * (1 + duty) * chance.uniform(0.8, 1.2), requests=6000)
    assert slowdown(requests_done, 20 * MS) <= 1 + LIMIT
    assert requests_done[-1][2] == pytest.approx(20 * MS, rel=0.15)


def test_a_client_that_becomes_slower_by_itself_does_not_shut_best_effort_out() -> None:
    throttle = gate.Throttle(0.2)
    pace = 0
    duties = []
    for number in range(4000):
        alone = 20 * MS if number < 1000 else 30 * MS
        duties.append(throttle.duty)
        pace = throttle.step(pace, LIMIT, round(alone * (1 + throttle.duty)))
    later = duties[3000:]
    assert sum(later) / len(later) > 0.5 * LIMIT
    assert pace == pytest.approx(30 * MS, rel=0.05)


def test_one_hiccup_does_not_shut_best_effort_out() -> None:
    throttle = gate.Throttle(0.2)
    pace = 0
    for number in range(1000):
        hiccup = 20 if number == 998 else 1
        before = throttle.duty
        pace = throttle.step(pace, LIMIT, round(hiccup * 20 * MS * (1 + throttle.duty)))
    assert abs(throttle.duty - before) <= 0.05 + 1e-9
    assert throttle.duty > 0
