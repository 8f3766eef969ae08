"""The queue of moving scores against one that sorts all of them again, in Python and in C++."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrarium._testing import HullQueue as NativeQueue
from astrarium.serving.policies.orloj import hull
from astrarium.serving.policies.orloj.hull import HullNode, HullQueue
from tests.support.naive_queue import NaiveQueue

Point = tuple[float, float]
QUEUES = [HullQueue, NativeQueue]
SIGNS = st.sampled_from([-1.0, 1.0])
PLACES = st.floats(-2, 2).map(lambda place: round(place, 12))  # no number that is tiny but for zero
STEPS = st.integers(-30, 30)


def orloj_point(deadline: int, size: float, sign: float) -> Point:
    """As Orloj makes them: bins sure to be in time give alpha, those in doubt take alpha and give beta."""
    return sign * size * math.exp(-0.05 * deadline), 0.0 if sign > 0 else 0.5 * size


POINTS: dict[str, st.SearchStrategy[Point]] = {
    "anywhere": st.tuples(PLACES, PLACES),
    "a coarse grid": st.tuples(st.sampled_from([-1.0, 0.0, 1.0, 2.0]), st.sampled_from([-1.0, 0.0, 3.0])),
    "a convex curve": STEPS.map(lambda x: (x / 7, -x * x / 49)),
    "a circle": STEPS.map(lambda x: (math.sin(x / 20), math.cos(x / 20))),
    "a line": STEPS.map(lambda x: (x / 7, 1 - 0.3 * (x / 7))),
    "one alpha": STEPS.map(lambda x: (0.1, x / 7)),
    "one beta": STEPS.map(lambda x: (x / 7, 0.1)),
    "neighbouring floats": st.tuples(st.integers(0, 40), st.integers(0, 2)).map(
        lambda p: (1 + p[0] * 2.0**-52, -1 - p[0] * 2.0**-52 + p[1] * 2.0**-53)
    ),
    "far apart": st.tuples(SIGNS, st.floats(-300, 300), st.just(0.0) | st.floats(1e-10, 1e10)).map(
        lambda p: (p[0] * math.exp(p[1]), p[2])
    ),
    "orloj": st.builds(orloj_point, st.integers(0, 60), st.sampled_from([1.0, 0.3, 7.7]), SIGNS),
}
SLOPES = st.one_of(
    st.sampled_from([0.3, 1 / 0.3, 0.5, 1.0, 2.0]),
    st.floats(-3, 3).map(math.exp),
    st.floats(-280, 280).map(math.exp),
)
Steps = list[tuple[bool, Point, int, float]]  # come or go, who comes, who goes, what is asked then


def steps(points: st.SearchStrategy[Point]) -> st.SearchStrategy[Steps]:
    comes = st.sampled_from([True, True, False])
    return st.lists(st.tuples(comes, points, st.integers(0, 999), SLOPES), min_size=20, max_size=60)


def play(queues: list[Any], chosen: Steps) -> Iterator[float]:
    """Insert and remove in all queues, and yield each slope while there is somebody to ask for."""
    present: list[int] = []
    for number, (comes, point, who, slope) in enumerate(chosen):
        if comes or not present:
            present.append(number * 7919 % 1009)  # ids in no order
            for queue in queues:
                queue.insert(present[-1], *point)
        else:
            gone = present.pop(who % len(present))
            for queue in queues:
                queue.remove(gone)
        if present:
            yield slope


class ExactQueue(NaiveQueue):
    """Leaves nothing to rounding."""

    def score(self, id: int, slope: float) -> Fraction:  # type: ignore[override]
        return exact_score(self.points[id], slope)


def exact_score(point: Point, slope: float) -> Fraction:
    return Fraction(point[0]) * Fraction(slope) + Fraction(point[1])


def rounding(point: Point, slope: float) -> Fraction:
    """What the score of a point may be off by when it is computed in floating point."""
    size = abs(Fraction(point[0]) * Fraction(slope)) + abs(Fraction(point[1]))
    return 2 * size / 2**52


def assert_best(answer: int, naive: ExactQueue, slope: float) -> None:
    point = naive.points[answer]
    winner = naive.points[naive.best(slope)]
    gap = exact_score(winner, slope) - exact_score(point, slope)
    assert gap <= rounding(winner, slope) + rounding(point, slope)
    assert answer == min(id for id, other in naive.points.items() if other == point)


QUICK = ("anywhere", "neighbouring floats", "far apart", "orloj")
FAMILIES = [pytest.param(name, marks=[pytest.mark.thorough] * (name not in QUICK)) for name in POINTS]


@pytest.mark.parametrize("family", FAMILIES)
@given(data=st.data())
@settings(max_examples=20)
def test_it_answers_like_a_queue_that_sorts(family: str, data: st.DataObject) -> None:
    queue = HullQueue()
    twin = NativeQueue()
    naive = ExactQueue()
    for slope in play([queue, twin, naive], data.draw(steps(POINTS[family]))):
        answer = queue.best(slope)
        assert_best(answer, naive, slope)
        assert twin.best(slope) == answer
        assert len(queue) == len(twin) == len(naive)
        assert answer in queue
        assert answer in twin


@pytest.mark.parametrize("family", FAMILIES)
@given(data=st.data())
@settings(max_examples=15)
def test_the_tree_is_what_it_says(family: str, data: st.DataObject) -> None:
    queue = HullQueue()
    twin = NativeQueue()
    for number, slope in enumerate(play([queue, twin], data.draw(steps(POINTS[family])))):
        if number % 9 == 8:
            check(queue, slope)
            assert twin.depth() == depth(root(queue))


def root(queue: HullQueue) -> HullNode:
    assert queue._root is not None
    return queue._root


def depth(node: HullNode) -> int:
    return 0 if node.weight == 1 else 1 + max(depth(node.left), depth(node.right))


def leaves(node: HullNode) -> list[hull.Key]:
    return [node.split] if node.weight == 1 else leaves(node.left) + leaves(node.right)


def inner_nodes(node: HullNode) -> Iterator[HullNode]:
    if node.weight > 1:
        yield node
        yield from inner_nodes(node.left)
        yield from inner_nodes(node.right)


def check(queue: HullQueue, slope: float) -> None:
    keys = leaves(root(queue))
    assert keys == sorted(queue._keys.values())
    for node in inner_nodes(root(queue)):
        left = leaves(node.left)
        right = leaves(node.right)
        assert node.weight == len(left) + len(right)
        assert node.split == left[-1]
        assert node.start in left
        assert node.end in right
        assert max(len(left), len(right)) <= hull.HEAVIER * min(len(left), len(right))
        check_sides(node, left, right, slope)
        if math.isfinite(node.crossing):
            check_support(node, left + right)


def check_sides(node: HullNode, left: list[hull.Key], right: list[hull.Key], slope: float) -> None:
    """The half that the crossing names holds the highest score, to rounding."""
    named, other = (right, left) if slope > node.crossing else (left, right)
    ours = max(named, key=lambda key: exact_score(key[:2], slope))
    theirs = max(other, key=lambda key: exact_score(key[:2], slope))
    assert_not_above(theirs, [ours], slope)


def check_support(node: HullNode, keys: list[hull.Key]) -> None:
    """No point of the subtree is above the line through the bridge, to the rounding of any: one that is far
    away may have been the other end of a line that was compared."""
    for key in keys:
        assert_not_above(key, [node.start, node.end], node.crossing, keys)


def assert_not_above(
    key: hull.Key, line: list[hull.Key], slope: float, among: Sequence[hull.Key] = ()
) -> None:
    lowest = min(exact_score(end[:2], slope) for end in line)
    allowed = 2 * max(rounding(point[:2], slope) for point in [key, *line, *among])
    assert exact_score(key[:2], slope) - lowest <= allowed


@pytest.mark.parametrize("make", QUEUES)
@pytest.mark.parametrize("order", ["rising", "falling", "from the middle"])
def test_sorted_input_makes_no_deep_tree(make: Any, order: str) -> None:
    count = 2000
    ranks = {"rising": range(count), "falling": range(count)[::-1]}
    middle = sorted(range(count), key=lambda rank: abs(rank - count / 2))
    queue = make()
    for rank in ranks.get(order, middle):
        queue.insert(rank, rank / count, -((rank / count) ** 2))
    tall = queue.depth() if make is NativeQueue else depth(root(queue))
    assert tall <= math.log(count) / math.log(4 / 3)
    assert [queue.best(2 * rank / count) for rank in range(1, count)] == list(range(1, count))


@pytest.mark.parametrize("make", QUEUES)
def test_it_empties_in_the_order_of_the_scores(make: Any) -> None:
    queue = make()
    slope = 1.3
    scores = {}
    for number in range(500):
        alpha, beta = orloj_point(number * 37 % 101, 1 + number % 5, (-1.0) ** number)
        queue.insert(number, alpha, beta)
        scores[number] = alpha * slope + beta
    popped = []
    while len(queue):
        popped.append(queue.best(slope))
        queue.remove(popped[-1])
    assert sorted(popped) == list(range(500))
    assert all(scores[a] >= scores[b] - 1e-12 for a, b in pairwise(popped))


@pytest.mark.parametrize("count", [256, 4096])
def test_an_update_takes_no_more_than_log_squared_steps(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Points far above the others are the worst: they end every bridge on their way up to the root."""
    queue = HullQueue()
    for number in range(count):
        queue.insert(number, math.sin(number), math.cos(number))
    looked: list[float] = []
    ask = hull.crossing

    def counted(left: hull.Key, right: hull.Key) -> float:
        looked.append(ask(left, right))
        return looked[-1]

    monkeypatch.setattr(hull, "crossing", counted)
    allowed = 2 * depth(root(queue)) ** 2
    for number in range(20):
        looked.clear()
        queue.insert(count + number, math.sin(7 * number), 1e3 - number)
        assert depth(root(queue)) < len(looked) <= allowed
        looked.clear()
        queue.remove(count + number)
        assert depth(root(queue)) < len(looked) <= allowed


@pytest.mark.parametrize("make", QUEUES)
def test_misuse_is_refused(make: Any) -> None:
    queue = make()
    queue.insert(3, 1.0, 2.0)
    with pytest.raises(ValueError):
        queue.insert(3, 0.0, 0.0)
    for alpha, beta in [(math.nan, 0.0), (0.0, math.inf)]:
        with pytest.raises(ValueError):
            queue.insert(4, alpha, beta)
    with pytest.raises(LookupError):
        queue.remove(4)
    assert len(queue) == 1
    queue.clear()
    assert 3 not in queue
    with pytest.raises(LookupError):
        queue.best(1.0)
    queue.insert(3, 0.0, 0.0)
    assert queue.best(1.0) == 3


def test_the_native_queue_takes_many_at_once() -> None:
    import numpy as np

    queue = NativeQueue()
    queue.insert_all(10, np.array([[1.0, 0.0], [0.0, 1.0], [0.8, 0.8]]))
    assert queue.best_of_all(np.array([0.1, 1.0, 100.0])) == [11, 12, 10]
    queue.remove_all(11, 2)
    assert len(queue) == 1
    with pytest.raises(ValueError):
        queue.insert_all(0, np.zeros((2, 3)))
