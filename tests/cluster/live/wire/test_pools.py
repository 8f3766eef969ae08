"""Connections are pooled by user: who has most gives way, and some descriptors are left for the arbiter."""

from __future__ import annotations

import resource

import pytest

from astrarium.cluster.live.wire.connections import (
    MOST_DESCRIPTORS,
    Full,
    Pool,
    Slot,
    fitting,
    raised_descriptors,
)


class Gone:
    """Who has had to give way."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def enter(self, pool: Pool, group: str, name: str = "") -> Slot:
        return pool.enter(group, lambda: self.names.append(name or group))


def test_a_user_has_so_many_connections_and_others_have_theirs() -> None:
    gone = Gone()
    pool = Pool("users", 10, 3)
    slots = [gone.enter(pool, "bob") for _ in range(3)]
    with pytest.raises(Full, match="bob has 3 connections open, and may have 3"):
        gone.enter(pool, "bob")
    gone.enter(pool, "carol")
    slots[0].leave()
    gone.enter(pool, "bob")
    assert (gone.names, len(pool)) == ([], 4)


def test_when_all_are_taken_the_oldest_of_who_has_most_gives_way() -> None:
    gone = Gone()
    pool = Pool("users", 4, 3)
    for group, name in (("bob", "b1"), ("carol", "c1"), ("bob", "b2"), ("bob", "b3"), ("eve", "e1")):
        gone.enter(pool, group, name)
    assert gone.names == ["b1"]
    gone.enter(pool, "dan")
    assert gone.names == ["b1", "b2"]
    with pytest.raises(Full, match="all 4 connections for users are taken"):  # all have the same
        gone.enter(pool, "fay")


def test_of_strangers_one_always_gives_way() -> None:
    gone = Gone()
    pool = Pool("strangers", 3, yields=True)
    for name in ("first", "second", "third", "fourth"):
        gone.enter(pool, "10.0.0.1", name)
    assert gone.names == ["first"]
    gone.enter(pool, "10.0.0.2", "elsewhere")
    assert gone.names == ["first", "second"]
    pool.give_way()
    assert gone.names == ["first", "second", "third"]


def test_who_has_given_way_leaves_once() -> None:
    gone = Gone()
    pool = Pool("strangers", 1, yields=True)
    first = gone.enter(pool, "a")
    gone.enter(pool, "b")
    first.leave()
    assert len(pool) == 1


@pytest.mark.parametrize("descriptors", [64, 256, 1024, 4096, 20_000, MOST_DESCRIPTORS])
def test_some_descriptors_are_left_for_the_arbiter_itself(descriptors: int) -> None:
    limits = fitting(descriptors)
    taken = limits.strangers + 5 * (limits.users + limits.operators) + limits.agents
    assert taken <= descriptors * 9 // 10
    assert 1 <= limits.user <= max(1, limits.users // 4)


def test_the_limit_of_descriptors_is_raised() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, before[1]), before[1]))
        raised = raised_descriptors()
        assert raised == resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(before[1], MOST_DESCRIPTORS)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
