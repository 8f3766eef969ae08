"""The wall-clock driver, with a clock that a test turns by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic_ns
from typing import Any

from astrarium.core.engine import Engine
from astrarium.core.policy import SetTimer, TimerFired
from astrarium.core.units import FOREVER, MILLISECOND
from astrarium.run.live import KernelAlarm, LiveDriver
from tests.support.live_fakes import FakeLoop


class Nothing:
    def apply(self, now: int, event: object) -> None: ...
    def commit(self, now: int, action: object) -> None: ...
    def close(self, now: int) -> None: ...
    def validate(self) -> None: ...


class Script:
    """Answers each event with what the script has for it, and keeps what it heard."""

    def __init__(self, answers: dict[Any, list[Any]]) -> None:
        self.answers = answers
        self.heard: list[tuple[int, list[Any]]] = []

    def decide(self, now: int, events: Sequence[Any], state: object) -> list[Any]:
        self.heard.append((now, list(events)))
        names = [event.name if isinstance(event, TimerFired) else event for event in events]
        return [action for name in names for action in self.answers.get(name, [])]


def driven(answers: dict[Any, list[Any]]) -> tuple[FakeLoop, Script, LiveDriver, list[Any]]:
    loop, policy, done = FakeLoop(start=0), Script(answers), list[Any]()
    engine: Engine[Any, Any, Any] = Engine(Nothing(), policy)
    alarm = loop.alarm(lambda: driver.step())
    driver = LiveDriver(engine, lambda now, actions: done.extend(actions), loop.clock, loop.soon, alarm)
    return loop, policy, driver, done


def test_what_happens_before_the_next_turn_is_decided_together() -> None:
    loop, policy, driver, done = driven({"a": ["act"]})
    driver.post("a")
    driver.post("b")
    assert policy.heard == []
    loop.run_until(10)
    assert policy.heard == [(0, ["a", "b"])]
    assert done == ["act"]


def test_a_timer_fires_once_and_a_later_one_of_the_same_name_replaces_it() -> None:
    answers = {"a": [SetTimer(100, "x"), SetTimer(50, "x"), SetTimer(70, "y")], "c": [SetTimer(FOREVER, "y")]}
    loop, policy, driver, _ = driven(answers)
    driver.post("a")
    loop.run_until(60)
    driver.post("c")
    loop.run_until(1000)
    assert policy.heard == [(0, ["a"]), (50, [TimerFired("x")]), (60, ["c"])]


def test_a_timer_in_the_past_fires_at_once() -> None:
    loop, policy, driver, _ = driven({"a": [SetTimer(0, "x")]})
    loop.run_until(500)
    driver.post("a")
    loop.run_until(600)
    assert policy.heard == [(500, ["a"]), (500, [TimerFired("x")])]


def test_an_alarm_that_rings_too_early_is_set_again() -> None:
    loop, policy, driver, _ = driven({"a": [SetTimer(100, "x")]})
    driver.post("a")
    loop.run_until(10)
    driver.step()
    loop.run_until(200)
    assert policy.heard == [(0, ["a"]), (100, [TimerFired("x")])]


def test_forgotten_timers_stay_silent() -> None:
    loop, policy, driver, _ = driven({"a": [SetTimer(100, "x")]})
    driver.post("a")
    loop.run_until(10)
    driver.forget_timers()
    loop.run_until(500)
    assert policy.heard == [(0, ["a"])]


def test_the_kernels_alarm_rings_at_the_moment_set_last_and_not_before() -> None:
    async def ring() -> tuple[int, int]:
        rang: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        alarm = KernelAlarm(asyncio.get_running_loop(), lambda: rang.set_result(monotonic_ns()))
        alarm.set(monotonic_ns() + 3600 * 1000 * MILLISECOND)
        moment = monotonic_ns() + 20 * MILLISECOND
        alarm.set(moment)
        found = await asyncio.wait_for(rang, 10)
        alarm.close()
        return moment, found

    moment, found = asyncio.run(ring())
    assert found >= moment


def test_the_kernels_alarm_rings_at_once_for_a_moment_that_has_passed() -> None:
    async def ring() -> None:
        rang = asyncio.Event()
        alarm = KernelAlarm(asyncio.get_running_loop(), rang.set)
        alarm.set(1)
        await asyncio.wait_for(rang.wait(), 10)
        alarm.close()

    asyncio.run(ring())
