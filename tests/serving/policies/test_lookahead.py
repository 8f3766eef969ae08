"""Whom to give up for a batch that has its GPU: small backlogs, worked out by hand.

A batch of b takes b + 5, and at most eight go together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrarium.core.quantities import FOREVER, Time
from astrarium.serving.policies._queue import Backlog
from astrarium.serving.policies.astrarium.queues import (
    MOST_GIVEN_UP,
    Prospect,
    due,
    give_up,
    losses,
    waste,
)

LATENCY = (0, *(size + 5 for size in range(1, 9)), FOREVER)
QUIET = Prospect(rate=0.0, enough=4, target=4, price=0.0, slo=20)


def backlog(*deadlines: Time) -> Backlog:
    return Backlog(deadlines, LATENCY, LATENCY)


def again(*times: Time) -> Callable[[int], Sequence[Time]]:
    return lambda size: times


# one who can only be saved alone, and five who need not hurry
HEAD_ALONE = backlog(6, 20, 20, 20, 20, 20)


def test_nobody_is_given_up_if_the_next_gpu_comes_soon() -> None:
    """At 11, four of the five are served by 20."""
    assert give_up(HEAD_ALONE, QUIET, 0, 0, 0, again(11)) == (0, 1)


def test_the_head_is_given_up_if_the_next_gpu_comes_late() -> None:
    """From 15 on, all five would be lost for the one."""
    assert give_up(HEAD_ALONE, QUIET, 0, 0, 0, again(15)) == (1, 5)


def test_the_size_tried_decides_when_the_gpu_is_back() -> None:
    """A batch of one has it back at 6."""
    assert give_up(HEAD_ALONE, QUIET, 0, 0, 0, lambda size: [LATENCY[size]]) == (0, 1)


def test_of_equal_losses_the_earlier_deadline_is_served() -> None:
    """Served alone, one of two behind is lost at 13 (only one is done by 20); dropped, one is lost too."""
    enough = QUIET._replace(enough=2)
    lost = give_up(backlog(6, 19, 20), enough, 0, 0, 0, again(13))
    assert losses(backlog(6, 19, 20), enough, 0, 1, [13]) == 1
    assert lost == (0, 1)


def test_a_batch_that_is_enough_needs_no_thought() -> None:
    def never(size: int) -> Sequence[Time]:
        raise AssertionError("asked for the next grants")

    assert give_up(backlog(9, 20, 20, 20, 20, 20), QUIET, 0, 0, 0, never) == (0, 4)
    assert give_up(backlog(7, 20), QUIET, 0, 0, 0, never) == (0, 2)  # all there are


def test_insisting_on_more_may_give_up_a_head() -> None:
    """In overload the target itself is wanted: four are not enough any more, and the two behind are late."""
    waiting = backlog(9, 20, 20, 20, 20, 20)
    assert give_up(waiting, QUIET, 0, 0, 0, again(15)) == (0, 4)
    assert give_up(waiting, QUIET._replace(enough=5, target=5), 0, 0, 0, again(15)) == (1, 5)


def test_hopeless_ones_are_dropped_and_cost_nothing() -> None:
    assert give_up(backlog(1, 5, 6, 20, 20), QUIET, 0, 0, 2, again(6)) == (2, 1)
    assert give_up(backlog(1, 5, 6, 20, 20), QUIET, 0, 0, 2, again(19)) == (3, 2)


def test_a_gpu_that_is_free_later_saves_fewer() -> None:
    """Free at 3, the one with 9 left is alone; at 0 it would be with three others."""
    waiting = backlog(9, 30, 30, 30, 30, 30)
    assert give_up(waiting, QUIET, 0, 3, 0, again(9)) == (0, 1)
    assert give_up(waiting, QUIET, 0, 0, 0, again(9)) == (0, 4)


@pytest.mark.parametrize(
    ("behind", "price", "expected"),
    [(4, 0.0, (0, 1)), (4, 0.59, (0, 1)), (4, 0.61, (1, 4)), (5, 0.44, (0, 1)), (5, 0.46, (1, 5))],
)
def test_wasted_time_has_its_price(behind: int, price: float, expected: tuple[int, int]) -> None:
    """One alone takes 6, in which at the target of 4 in 9 there would be 2 2/3: 1 2/3 wasted, against
    nothing with the four behind (one lost pays from a price of 3/5), and 5/9 saved with five (9/20)."""
    waiting = backlog(6, *[20] * behind)
    assert waste(waiting, 4, 1) == pytest.approx(5 / 3)
    assert waste(waiting, 4, 4) == 0
    assert waste(waiting, 4, 5) == pytest.approx(-5 / 9)
    assert give_up(waiting, QUIET._replace(price=price), 0, 0, 0, again(6)) == expected


def test_several_heads_are_given_up_if_that_is_the_fewest() -> None:
    """Two that can only go alone, each; six behind them are late for a GPU at 16."""
    waiting = backlog(6, 6, 20, 20, 20, 20, 20, 20)
    assert give_up(waiting, QUIET, 0, 0, 0, again(16)) == (2, 6)
    assert give_up(waiting, QUIET, 0, 0, 0, again(6)) == (0, 1)  # the second is lost whatever is done


def test_no_more_than_so_many_are_given_up_at_once() -> None:
    crowd = backlog(*[6] * (MOST_GIVEN_UP + 1), *[20] * 8)
    head, size = give_up(crowd, QUIET, 0, 0, 0, again(16))
    assert head <= MOST_GIVEN_UP
    assert size == 1


def test_losses_by_hand() -> None:
    """Four wait (14, 20, 20, 20), and one comes every two. At 6 seven are there: four would be done at 15,
    too late for the first; the other six leave. At 17 five more are there, done at 26 in fours."""
    waiting = backlog(6, 14, 20, 20, 20)
    steady = QUIET._replace(rate=0.5)
    assert losses(waiting, steady, 0, 1, [6]) == 1
    assert losses(waiting, steady, 0, 1, [6, 17]) == 1  # the first of the five came at 8: due at 28
    in_a_hurry = steady._replace(slo=15)  # due at 23, 25, 27: two are lost for the three after them
    assert losses(waiting, in_a_hurry, 0, 1, [6, 17]) == 3
    assert losses(waiting, steady, 0, 1, []) == 0


def test_when_somebody_is_due() -> None:
    waiting = backlog(6, 14, 20)
    steady = QUIET._replace(rate=0.5)
    assert [due(waiting, steady, 3, 1, 2, place) for place in range(4)] == [14, 20, 3 + 2 + 20, 3 + 4 + 20]


deadline_lists = st.lists(st.integers(6, 60), min_size=1, max_size=14).map(sorted)
prospects = st.builds(
    Prospect,
    st.sampled_from([0.0, 0.1, 0.7]),
    st.integers(1, 8),
    st.integers(1, 8),
    st.sampled_from([0.0, 0.5, 3.0]),
    st.integers(10, 60),
)


@given(
    deadlines=deadline_lists, prospect=prospects, grants=st.lists(st.integers(1, 40), max_size=3).map(sorted)
)
def test_the_choice_is_the_cheapest_of_those_it_may_make(
    deadlines: list[Time], prospect: Prospect, grants: list[Time]
) -> None:
    """It keeps the deadline of every member, and no other number of heads to drop would cost less."""
    waiting = backlog(*deadlines)
    head, size = give_up(waiting, prospect, 0, 0, 0, lambda size: grants)
    assert 0 <= head < head + size <= len(deadlines)
    assert LATENCY[size] <= deadlines[head]

    def cost(head: int) -> float:
        size = waiting.fitting(head, 0, 0)
        lost = losses(waiting, prospect, 0, head + size, grants)
        return head + prospect.price * waste(waiting, prospect.target, size) + lost

    wanted = min(prospect.enough, len(deadlines))
    fits = [place for place in range(len(deadlines)) if waiting.fitting(place, 0, 0) >= wanted]
    last = min([*fits, *(p for p in range(len(deadlines)) if p + waiting.fitting(p, 0, 0) >= len(deadlines))])
    if last > 0:
        assert cost(head) <= min(cost(place) for place in range(last + 1)) + 1e-6
    else:
        assert head == 0
