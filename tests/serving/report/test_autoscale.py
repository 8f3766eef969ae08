"""The two signals of an autoscaler, and what it hears over time."""

from __future__ import annotations

import math

import numpy as np
import pytest

from astrarium.core.quantities import MILLISECOND, SECOND
from astrarium.serving.autoscale import (
    advice_over_time,
    advise,
    busy_before,
)
from astrarium.serving.ledger import Outcome
from tests.support.report_runs import by_hand, simulated


def test_allocate_what_the_bad_requests_need() -> None:
    assert advise(8, 0.2, 0.0).allocate == pytest.approx(2)  # 8 GPUs serve 80 %, so 10 serve all
    assert advise(8, 0.5, 0.0).allocate == pytest.approx(8)
    assert advise(8, 0.01, 0.0).allocate == 0  # at the threshold, not above it
    assert advise(8, 0.011, 0.0).allocate > 0
    assert advise(8, 1.0, 0.0).allocate == math.inf


def test_release_what_is_idle_unless_requests_are_bad() -> None:
    assert advise(8, 0.0, 0.25).release == 2
    assert advise(8, 0.2, 0.25).release == 0
    assert advise(8, 0.2, 0.25).allocate == pytest.approx(2)


def test_busy_before_is_the_area_under_the_intervals() -> None:
    chance = np.random.default_rng(3)
    started = chance.integers(0, 1000, 50)
    finished = started + chance.integers(0, 100, 50)
    times = np.arange(0, 1200, 7)
    expected = [sum(max(0, min(t, b) - a) for a, b in zip(started, finished, strict=True)) for t in times]
    assert busy_before(started, finished, times).tolist() == expected


def test_over_time_against_loops() -> None:
    record = simulated("eager", rate=2500.0)
    window = SECOND // 2
    step = SECOND // 4
    advice = advice_over_time(record, window, step)
    assert advice.time.tolist() == [step * i for i in range(1, 9)]
    done = record.requests.done.tolist()
    outcome = record.requests.outcome.tolist()
    batches = record.batches
    for i, end in enumerate(advice.time.tolist()):
        start = max(end - window, 0)
        ended = [o for at, o in zip(done, outcome, strict=True) if start <= at < end]
        assert advice.bad_rate[i] == pytest.approx(1 - ended.count(Outcome.IN_TIME) / len(ended))
        busy = [0, 0, 0]
        for gpu, a, b in zip(batches.gpu, batches.started, batches.finished, strict=True):
            busy[gpu] += max(0, min(int(b), end) - max(int(a), start))
        assert advice.idle_fraction[i] == pytest.approx(1 - sum(busy) / (3 * (end - start)))
        assert advice.used[i] == sum(time > 0 for time in busy)
        assert advice.allocate[i] == pytest.approx(advise(3, float(advice.bad_rate[i]), 0.0).allocate)
    assert advice.allocate.max() > 0


def test_a_quiet_window_gives_everything_back() -> None:
    advice = advice_over_time(by_hand(), 5 * MILLISECOND, 5 * MILLISECOND)
    assert (advice.bad_rate[0], advice.used[0], advice.release[0]) == (0, 0, 2)
    assert advice.used.max() == 1  # GPU 1 begins after GPU 0 has ended
