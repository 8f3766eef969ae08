"""A hull queue finds the request that maximizes alpha * slope + beta, for any slope.

A request is a point (alpha, beta) in the plane; the best one for a slope is where a line in direction
(1, -slope) touches the upper hull of all points. The hull is kept under insertions and removals in
O(log^2 n) each, and asked in O(log n), after Overmars and van Leeuwen, "Maintenance of Configurations
in the Plane", 1981, with bridges in place of their concatenable queues (Orloj's priority queue, its section
4.4.4).

The points are the leaves of a weight-balanced tree, in the order of alpha. Left points can only win
where the slope is small and right points where it is large, so each inner node needs a single number:
the *crossing*, up to which its left half wins. The two points that win there, one of each half, are the
*bridge*: the edge of the hull that joins both halves. To ask is to descend by crossings.

Every number here is computed in the same order by the native twin (hull.h), so both agree bit by bit.
"""

from __future__ import annotations

from math import inf, isfinite
from typing import Final

Key = tuple[float, float, int]  # alpha, beta, id: the order of the leaves

HEAVIER: Final = 3  # one half may weigh this many times the other; more, and the tree is rotated,
INNER: Final = 2  # twice where the inner grandchild weighs this many times the outer one
NO_ID: Final = -(1 << 63)  # comes before every id


class HullQueue:
    """A hull queue holds points by id; alpha and beta may be from e^-300 to e^300 and of either sign."""

    def __init__(self) -> None:
        self._root: HullNode | None = None
        self._keys: dict[int, Key] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, id: int) -> bool:
        return id in self._keys

    def clear(self) -> None:
        self._root = None
        self._keys.clear()

    def insert(self, id: int, alpha: float, beta: float) -> None:
        if id in self._keys or not (isfinite(alpha) and isfinite(beta)):
            raise ValueError(f"id {id} at ({alpha}, {beta}): must be new and finite")
        key = self._keys[id] = (alpha, beta, id)
        if self._root is None:
            self._root = HullNode(key)
            return
        path = self._path(self._root, key)
        neighbour = path.pop()
        self._replace(path, neighbour, join(neighbour, HullNode(key)))
        while path:
            node = path.pop()
            node.weight += 1
            if (top := balanced(node)) is not node:
                self._replace(path, node, top)
            else:
                node.came(key)

    def remove(self, id: int) -> None:
        key = self._keys.pop(id)
        assert self._root is not None
        path = self._path(self._root, key)
        leaf = path.pop()
        if not path:
            self._root = None
            return
        parent = path.pop()
        self._replace(path, parent, parent.left if leaf is parent.right else parent.right)
        while path:
            node = path.pop()
            node.weight -= 1
            if node.split == key:  # the leaf was the last one on the left here: then it had one before it
                node.split = parent.split
            if (top := balanced(node)) is not node:
                self._replace(path, node, top)
            else:
                node.went(key)

    def best(self, slope: float) -> int:
        """Return the id that maximizes alpha * slope + beta for a positive slope; the smallest of equals."""
        if self._root is None:
            raise IndexError("the queue is empty")
        node = self._root
        while node.weight > 1:
            node = node.right if slope > node.crossing else node.left
        alpha, beta, _ = node.split
        return self._path(self._root, (alpha, beta, NO_ID))[-1].split[2]

    def _path(self, node: HullNode, key: Key) -> list[HullNode]:
        """Return the path from *node* down to the first leaf that is not before *key* (or the last leaf)."""
        path = [node]
        while node.weight > 1:
            node = node.left if key <= node.split else node.right
            path.append(node)
        return path

    def _replace(self, path: list[HullNode], old: HullNode, new: HullNode) -> None:
        if not path:
            self._root = new
        elif path[-1].left is old:
            path[-1].left = new
        else:
            path[-1].right = new


class HullNode:
    """A node is a leaf with its key in `split`, or two halves with the last key of the left one there."""

    __slots__ = ("crossing", "end", "left", "right", "split", "start", "weight")

    left: HullNode  # not set in a leaf
    right: HullNode

    def __init__(self, key: Key) -> None:
        self.split = self.start = self.end = key
        self.weight = 1  # leaves below
        self.crossing = inf

    def came(self, key: Key) -> None:
        """Find the bridge again if a new point is above it: a half that grows wins for longer."""
        if key <= self.split:
            if crossing(key, self.end) > self.crossing:
                self.find_bridge(self.crossing, inf)
        elif crossing(self.start, key) < self.crossing:
            self.find_bridge(-inf, self.crossing)

    def went(self, key: Key) -> None:
        """Find the bridge again if it has lost an end."""
        if key == self.start:
            self.find_bridge(-inf, self.crossing)
        elif key == self.end:
            self.find_bridge(self.crossing, inf)

    def find_bridge(self, low: float = -inf, high: float = inf) -> None:
        """Descend into both halves at once, until each is one point; the crossing is within the bounds.

        Whatever is ruled out, the bridge between what remains of both halves is the one we look for. A
        half is known by its own bridge only, but where that crosses, it tells the half's true height.
        The bounds become narrower; they settle most choices without a look at the points, and keep what a
        choice was off by rounding from growing afterwards.
        """
        left = self.left
        right = self.right
        while left.weight > 1 or right.weight > 1:
            into_left, later = choose(left, right, self.split[0], low, high)
            half = left if into_left else right
            if later:
                low = max(low, half.crossing)
            else:
                high = min(high, half.crossing)
            part = half.right if later else half.left
            left, right = (part, right) if into_left else (left, part)
        self.start = left.split
        self.end = right.split
        self.crossing = max(low, min(high, crossing(self.start, self.end)))


def crossing(left: Key, right: Key) -> float:
    """Return the slope above which the right one of two points wins: -inf for always, inf for never."""
    rise = right[0] - left[0]
    if rise > 0.0:
        return (left[1] - right[1]) / rise
    return inf if left[1] == right[1] else -inf


def choose(left: HullNode, right: HullNode, middle: float, low: float, high: float) -> tuple[bool, bool]:
    """Return whether to descend into the left half, and whether the halves cross later than the chosen one.

    *middle* is an alpha between those of the halves. Where the left half is the higher one, they cross
    later; where the right half is, not later.
    """
    if left.weight > 1 and not low < left.crossing < high:
        return True, left.crossing <= low
    if right.weight > 1 and not low < right.crossing < high:
        return False, right.crossing <= low
    if left.weight == 1:
        return False, crossing(left.split, right.start) >= right.crossing
    if right.weight == 1:
        return True, crossing(left.end, right.split) >= left.crossing
    if left.crossing > right.crossing:
        later = crossing(left.end, right.end) >= left.crossing
        return not later, later  # where left is the higher one at its crossing, it is so at right's too
    meeting = crossing(left.end, right.start)
    if meeting < left.crossing:
        return True, False
    if meeting >= right.crossing:
        return False, True
    later = rises_less(left, right, meeting, middle)
    return later, later


def rises_less(left: HullNode, right: HullNode, meeting: float, middle: float) -> bool:
    """Whether the way up from the left half's crossing to the right one's is less steep than *middle*.

    No left point is steeper and no right point less steep. So if it is, the right half was no higher at
    the left one's crossing; and if it is not, the left half will be no higher at the right one's.
    """
    after = (right.start[0] - middle) * (right.crossing - meeting)
    return after <= (middle - left.end[0]) * (meeting - left.crossing)


def join(one: HullNode, other: HullNode) -> HullNode:
    """Return an inner node made of two leaves."""
    left, right = (one, other) if one.split < other.split else (other, one)
    node = HullNode(left.split)
    node.left = left
    node.right = right
    refresh(node)
    return node


def balanced(node: HullNode) -> HullNode:
    """Balance a subtree's weights; return the node itself, or the one that takes its place."""
    left = node.left
    right = node.right
    if right.weight > HEAVIER * left.weight:
        if right.left.weight >= INNER * right.right.weight:
            node.right = rotate_right(right)
        return rotate_left(node)
    if left.weight > HEAVIER * right.weight:
        if left.right.weight >= INNER * left.left.weight:
            node.left = rotate_left(left)
        return rotate_right(node)
    return node


def rotate_left(node: HullNode) -> HullNode:
    top = node.right
    node.right = top.left
    top.left = node
    refresh(node)
    refresh(top)
    return top


def rotate_right(node: HullNode) -> HullNode:
    top = node.left
    node.left = top.right
    top.right = node
    refresh(node)
    refresh(top)
    return top


def refresh(node: HullNode) -> None:
    node.weight = node.left.weight + node.right.weight
    node.find_bridge()
