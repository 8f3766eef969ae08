"""The queue by score as anyone would write it: look at everybody. It tells whether the fast one is right."""

from __future__ import annotations


class NaiveQueue:
    """As `HullQueue`: requests are points (alpha, beta), worth alpha * slope + beta."""

    def __init__(self) -> None:
        self.points: dict[int, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self.points)

    def __contains__(self, id: int) -> bool:
        return id in self.points

    def clear(self) -> None:
        self.points.clear()

    def insert(self, id: int, alpha: float, beta: float) -> None:
        if id in self.points:
            raise ValueError(f"id {id}: must be new")
        self.points[id] = (alpha, beta)

    def remove(self, id: int) -> None:
        del self.points[id]

    def score(self, id: int, slope: float) -> float:
        alpha, beta = self.points[id]
        return alpha * slope + beta

    def best(self, slope: float) -> int:
        """The highest score; of equal ones the smallest id."""
        if not self.points:
            raise IndexError("the queue is empty")
        return max(self.points, key=lambda id_: (self.score(id_, slope), -id_))
