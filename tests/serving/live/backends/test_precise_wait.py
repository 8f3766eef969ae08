"""A wait ends exactly: never early, seldom late, and is interrupted by orders alone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from astrarium.serving.live.backends import precise_wait

MS = 1_000_000


def test_a_wait_never_ends_early() -> None:
    for span in (0, 50_000, 300_000, 2 * MS):
        instant = time.monotonic_ns() + span
        assert precise_wait.wait_until(instant)
        assert time.monotonic_ns() >= instant


def test_a_wait_can_be_interrupted_by_what_arrives() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"stop")
    wait = precise_wait.watching(reading, lambda _: os.read(reading, 4) == b"stop")
    assert not wait(time.monotonic_ns() + 3600 * 1_000_000_000)
    os.close(reading)
    os.close(writing)


def test_other_news_does_not_end_a_wait() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"go on")
    messages: list[bytes] = []

    def interrupted(until: int) -> bool:
        assert until == instant
        messages.append(os.read(reading, 5))
        return False

    instant = time.monotonic_ns() + 20 * MS
    assert precise_wait.watching(reading, interrupted)(instant)
    assert time.monotonic_ns() >= instant
    assert messages == [b"go on"]
    os.close(reading)
    os.close(writing)


class VirtualTime:
    """A clock that runs only while somebody pauses, and at least 2 us for each time somebody asks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, orders: Sequence[int] = ()) -> None:
        self.now = 0
        self.asked = 0
        self.orders = list(orders)
        self.heard = list[int]()
        clock = SimpleNamespace(monotonic_ns=lambda: self.now, sleep=self._pause)
        monkeypatch.setattr(precise_wait, "time", clock)
        monkeypatch.setattr(precise_wait, "select", SimpleNamespace(select=self._select))

    def ready_at(self, instant: int) -> Callable[[], bool]:
        def ready() -> bool:
            self.asked += 1
            return self.now >= instant

        return ready

    def hear(self, until: int) -> bool:
        self.heard.append(self.orders.pop(0))
        return True  # which ends no wait for something that gets ready

    def _pause(self, seconds: float) -> None:
        self.now += max(2000, round(seconds * 1e9))

    def _select(self, readers: Any, writers: Any, others: Any, seconds: float) -> tuple[Any, Any, Any]:
        end = self.now + max(2000, round(seconds * 1e9))
        self.now = max(self.now, min(end, *self.orders, end))
        return readers if self.orders and self.orders[0] <= self.now else [], [], []


@pytest.mark.parametrize("late", [-20, 0, 50, 400, 5000])
@pytest.mark.parametrize("listens", [False, True])
def test_what_gets_ready_is_found_soon_and_not_asked_for_all_the_time(
    late: int, listens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is expected after 5 ms, and ready that many microseconds later."""
    clock = VirtualTime(monkeypatch)
    wait = precise_wait.watching(0, clock.hear) if listens else precise_wait.wait_until
    end = 5 * MS + late * 1000
    assert wait(5 * MS, clock.ready_at(end))
    assert end <= clock.now <= end + max(2000, late * 1000 // 8 + 2000)
    assert clock.asked < 150


def test_orders_are_heard_while_something_gets_ready_and_do_not_end_the_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = VirtualTime(monkeypatch, [MS, MS, 4 * MS + 970_000])
    wait = precise_wait.watching(0, clock.hear)
    assert wait(5 * MS, clock.ready_at(5 * MS))
    assert clock.heard == [MS, MS, 4 * MS + 970_000]
