"""What a reproduction finds: rows that set the paper beside us, and the data its figure is drawn from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from astrarium.run.pools import threads

Item = TypeVar("Item")
Result = TypeVar("Result")


class Row(msgspec.Struct, frozen=True):
    """One number of the paper and ours. The paper's may be a range, or missing where it drew but did not
    say; then there is nothing to agree with. A row that differs carries the reason in its note."""

    what: str
    ours: float
    paper: float | tuple[float, float] | None = None
    unit: str = ""
    tolerance: float = 0.05  # relative, on both ends of a range
    note: str = ""
    given: bool = False  # it follows from what we put in, so that agreeing says nothing

    @property
    def ratio(self) -> float | None:
        """Return ours over the paper's (the nearest end of a range)."""
        if self.paper is None:
            return None
        low, high = self.bounds
        nearest = min(max(self.ours, low), high)
        if nearest == 0:
            return 1.0 if self.ours == 0 else None
        return self.ours / nearest

    @property
    def bounds(self) -> tuple[float, float]:
        assert self.paper is not None
        return self.paper if isinstance(self.paper, tuple) else (self.paper, self.paper)

    @property
    def verdict(self) -> str:
        if self.paper is None:
            return "no number"
        low, high = self.bounds
        slack = self.tolerance
        if self.ours < low - abs(low) * slack:
            return "lower"
        if self.ours > high + abs(high) * slack:
            return "higher"
        return "given" if self.given else "agrees"

    def shown(self) -> dict[str, Any]:
        """Return the row as JSON prints it: the derived columns included."""
        return {**msgspec.structs.asdict(self), "ratio": self.ratio, "verdict": self.verdict}


class Claim(msgspec.Struct, frozen=True):
    """Something the paper says of a shape, or asked of our own policy, and whether our curves show it."""

    what: str
    holds: bool
    note: str = ""
    given: bool = False  # it follows from what we put in

    @property
    def verdict(self) -> str:
        if not self.holds:
            return "does not hold"
        return "given" if self.given else "holds"


class Findings(msgspec.Struct):
    rows: list[Row]
    claims: list[Claim] = []
    data: dict[str, Any] = {}  # plain numbers and lists: what the figure is drawn from
    skipped: str = ""  # why nothing was measured: what it needs is not at hand


class Effort(msgspec.Struct, frozen=True):
    """How much to spend. `quick` is a small form that runs in the tests; its numbers are rougher."""

    quick: bool = False
    jobs: int = 1
    progress: Callable[[str], None] | None = None
    settings: dict[str, str] = {}  # what is switched, of those that a reproduction has

    def pick(self, quick: Any, full: Any) -> Any:
        return quick if self.quick else full

    def say(self, step: str) -> None:
        if self.progress is not None:
            self.progress(step)

    def map(self, work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Return the work on every item, as many at a time as there are jobs. Threads do: native runs let go
        of the interpreter."""
        if self.jobs <= 1:
            return [work(item) for item in items]
        with threads(self.jobs) as pool:
            return list(pool.map(work, items))
