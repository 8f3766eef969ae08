"""The event loop: what happens together, what happens first, and what no longer happens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from astrarium.core.engine import Engine
from astrarium.core.policy import SetTimer, TimerFired
from astrarium.core.quantities import FOREVER
from astrarium.run.simulate import World, simulate


class Blank:
    """Books with nothing in them."""

    closed_at = -1

    def apply(self, now: int, event: Any) -> None: ...
    def commit(self, now: int, action: Any) -> None: ...
    def validate(self) -> None: ...

    def close(self, now: int) -> None:
        self.closed_at = now


class Scripted:
    """Answers from a script (instant -> actions), and remembers what it heard when."""

    def __init__(self, script: dict[int, list[Any]]) -> None:
        self.script = script
        self.heard = list[tuple[int, list[Any]]]()

    def decide(self, now: int, events: Sequence[Any], state: Any) -> Iterable[Any]:
        self.heard.append((now, list(events)))
        return self.script.pop(now, [])


class Echo(World[Any, Any, Any]):
    """An action (delay, word) leads to the word, after the delay."""

    def consequences(self, now: int, action: tuple[int, str], state: Any) -> Iterator[tuple[int, str]]:
        yield now + action[0], action[1]


def heard(arrivals: list[tuple[int, str]], script: dict[int, list[Any]]) -> list[tuple[int, list[Any]]]:
    policy = Scripted(script)
    simulate(Engine(Blank(), policy), arrivals, Echo())
    return policy.heard


def test_all_events_of_an_instant_are_decided_together() -> None:
    assert heard([(3, "a"), (3, "b"), (5, "c")], {3: [(2, "d")]}) == [(3, ["a", "b"]), (5, ["c", "d"])]


def test_arrivals_come_before_consequences_and_those_in_the_order_of_their_causes() -> None:
    script = {0: [(4, "first"), (4, "second")], 1: [(3, "third")]}
    assert heard([(0, "x"), (1, "y"), (4, "z")], script)[-1] == (4, ["z", "first", "second", "third"])


def test_a_consequence_without_delay_is_a_step_of_its_own_at_the_same_instant() -> None:
    assert heard([(2, "a")], {2: [(0, "b")]}) == [(2, ["a"]), (2, ["b"])]


def test_a_timer_fires_at_its_time() -> None:
    assert heard([(0, "a")], {0: [SetTimer(9, "wake")]}) == [(0, ["a"]), (9, [TimerFired("wake")])]


def test_a_timer_set_again_fires_once_at_the_new_time() -> None:
    later = {0: [SetTimer(5, "t")], 1: [SetTimer(8, "t")]}
    assert heard([(0, "a"), (1, "b")], later)[2:] == [(8, [TimerFired("t")])]
    sooner = {0: [SetTimer(8, "t")], 1: [SetTimer(5, "t")]}
    assert heard([(0, "a"), (1, "b")], sooner)[2:] == [(5, [TimerFired("t")])]


def test_a_timer_set_away_and_back_fires_once() -> None:
    script = {0: [SetTimer(5, "t")], 1: [SetTimer(8, "t")], 2: [SetTimer(5, "t")]}
    assert heard([(0, "a"), (1, "b"), (2, "c")], script)[3:] == [(5, [TimerFired("t")])]


def test_a_timer_can_be_called_off() -> None:
    script = {0: [SetTimer(5, "t")], 1: [SetTimer(FOREVER, "t")]}
    assert heard([(0, "a"), (1, "b")], script) == [(0, ["a"]), (1, ["b"])]


def test_timers_of_different_names_do_not_meet() -> None:
    script = {0: [SetTimer(5, "t"), SetTimer(6, "u")]}
    assert heard([(0, "a")], script)[1:] == [(5, [TimerFired("t")]), (6, [TimerFired("u")])]


def test_a_timer_in_the_past_fires_now() -> None:
    assert heard([(7, "a")], {7: [SetTimer(3, "t")]}) == [(7, ["a"]), (7, [TimerFired("t")])]


def test_it_ends_at_the_last_instant_and_closes_the_books() -> None:
    books = Blank()
    seen = list[int]()
    end = simulate(Engine(books, Scripted({1: [(41, "late")]})), [(1, "a")], Echo(), seen.append)
    assert (end, books.closed_at, seen) == (42, 42, [1, 42])


def test_nothing_happens_when_nothing_arrives() -> None:
    assert heard([], {}) == []
