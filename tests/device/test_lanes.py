"""Lanes: Algorithm 2.1, the safety condition, and memory that closes ranks at iteration boundaries."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from astrarium.device.contract import NEW_LANE
from astrarium.device.lanes import Layout


def filled(capacity: int, *jobs: tuple[int, int]) -> Layout:
    """A lane for each job of (persistent, ephemeral)."""
    layout = Layout(capacity)
    for job, needs in enumerate(jobs):
        layout.open(job, *needs)
    return layout


def test_a_new_lane_while_there_is_room() -> None:
    assert filled(100, (10, 30)).find(10, 50) == NEW_LANE


def test_else_the_lane_that_fits_best() -> None:
    layout = filled(100, (5, 40), (5, 20), (5, 22))
    assert layout.free == 3
    assert layout.find(3, 20) == 1
    assert layout.find(3, 21) == 2
    assert layout.find(3, 30) == 0


def test_joining_a_lane_needs_room_for_persistent_memory_too() -> None:
    assert filled(100, (5, 40), (5, 20), (5, 22)).find(4, 20) is None


def test_else_the_smallest_lane_that_can_grow_enough() -> None:
    layout = filled(100, (5, 40), (5, 20))
    assert layout.free == 30
    assert layout.find(5, 41) == 1  # from 20 to 41, and 5: 26 of the 30
    assert layout.find(5, 46) == 0  # the smaller would need 31
    assert layout.find(25, 46) is None


def test_a_lane_in_the_middle_of_an_iteration_keeps_its_size_and_its_place() -> None:
    layout = filled(100, (5, 40), (5, 20))
    assert layout.find(5, 41, busy={1}) is None  # lane 1 runs, and lies beyond lane 0
    assert layout.find(5, 41, busy={0}) == 1


def test_those_beyond_make_way_for_a_lane_that_grows() -> None:
    layout = filled(100, (5, 20), (5, 30))
    first, second = layout.lanes
    layout.join(first, 9, 5, 30)
    assert (first.size, second.base, second.end) == (30, 30, 60)
    assert layout.safe()


def test_a_lane_shrinks_and_others_close_ranks_at_the_boundary_only() -> None:
    layout = filled(100, (5, 20), (5, 30), (5, 10))
    layout.leave(0)
    layout.settle(busy={1})
    assert [(lane.id, lane.base) for lane in layout.lanes] == [(1, 20), (2, 50)]
    layout.settle()
    assert [(lane.id, lane.base) for lane in layout.lanes] == [(1, 0), (2, 30)]
    layout.join(layout.lanes[1], 8, 1, 25)
    layout.leave(8)
    layout.settle(busy={2})
    assert layout.lanes[1].size == 25
    layout.settle()
    assert layout.lanes[1].size == 10


needs = st.tuples(st.integers(0, 40), st.integers(0, 60))
steps = st.lists(
    st.tuples(st.sampled_from(["find", "leave", "settle"]), needs, st.sets(st.integers(0, 6))), max_size=40
)


@given(steps)
@settings(max_examples=300, deadline=None)
def test_whatever_is_found_is_safe(script: list[tuple[str, tuple[int, int], set[int]]]) -> None:
    layout = Layout(100)
    jobs = 0
    for what, (persistent, ephemeral), busy in script:
        if what == "find":
            number = layout.find(persistent, ephemeral, busy)
            lane = None if number is None else layout.lane(number)
            if number == NEW_LANE:
                layout.open(jobs, persistent, ephemeral)
            elif lane is not None:
                layout.join(lane, jobs, persistent, ephemeral)
            jobs += 1
        elif what == "leave" and layout.persistent:
            layout.leave(min(layout.persistent))
        else:
            layout.settle(busy)
        assert layout.safe()
        total = sum(layout.persistent.values()) + sum(lane.size for lane in layout.lanes)
        assert total <= layout.capacity
