"""Timers by name: replaced, unset, due in the order in which they were set."""

from __future__ import annotations

from astrarium.core.policy import SetTimer, TimerFired
from astrarium.core.quantities import FOREVER
from astrarium.core.timers import Timers


def test_a_timer_that_is_set_again_replaces_the_earlier_and_fires_once() -> None:
    timers = Timers()
    timers.set_from([SetTimer(5, "a"), SetTimer(7, "b"), "no timer", SetTimer(7, "a")])
    assert timers.earliest == 7
    assert timers.due(6) == []
    assert timers.due(7) == [TimerFired("b"), TimerFired("a")]
    assert timers.due(8) == []
    assert not timers


def test_a_timer_that_is_set_for_ever_is_unset() -> None:
    kept: dict[str, int] = {}
    timers = Timers(kept)
    timers.set(SetTimer(3, "a"))
    assert kept == {"a": 3}
    timers.set(SetTimer(FOREVER, "a"))
    assert (kept, timers.earliest) == ({}, FOREVER)
