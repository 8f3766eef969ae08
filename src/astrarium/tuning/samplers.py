"""Where configurations come from: a library's sampler behind one protocol, or one of these two."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Any, Literal, Protocol

import msgspec

from astrarium.core.streams import stream
from astrarium.tuning.spaces import Space, Values
from astrarium.tuning.spaces import grid as grid_of

Goal = Literal["min", "max"]


class Standing(IntEnum):
    """How a candidate ended. COMPLETE: it had all that the search gives to anyone; STOPPED: others were
    better; WITHDRAWN: the search ended while it trained."""

    OPEN = 0
    COMPLETE = 1
    STOPPED = 2
    FAILED = 3
    WITHDRAWN = 4


class Configuration(msgspec.Struct, frozen=True):
    """*id* is the sampler's own."""

    id: int
    values: dict[str, Any]


class Sampler(Protocol):
    """Is asked for configurations, and told what became of each of them: exactly once, and never OPEN.

    *goal* is what its library was told to do; None where it does not matter to it.
    """

    goal: Goal | None

    def ask(self) -> Configuration | None:
        """None: there are no more."""

    def adopt(self, values: Values) -> Configuration:
        """One that the search made itself, such as a changed copy; the sampler may learn from it too."""

    def report(self, id: int, iterations: int, value: float) -> bool:
        """What it was worth after that many iterations in all. True: the sampler's library would stop it."""

    def tell(self, id: int, value: float | None, standing: Standing) -> None:
        """It has ended. *value* is its last one, if it ever had one."""


class _Own:
    """A sampler that learns nothing."""

    goal: Goal | None = None

    def __init__(self) -> None:
        self._next = 0

    def adopt(self, values: Values) -> Configuration:
        self._next += 1
        return Configuration(self._next - 1, dict(values))

    def report(self, id: int, iterations: int, value: float) -> bool:
        return False

    def tell(self, id: int, value: float | None, standing: Standing) -> None:
        """Nothing to learn."""


class RandomSampler(_Own):
    """Each configuration has a random stream of its own: what is asked in between changes none."""

    def __init__(self, space: Space, seed: int = 0) -> None:
        super().__init__()
        self._space, self._seed, self._asked = space, seed, 0

    def ask(self) -> Configuration:
        parts = stream(self._seed, "configuration", self._asked).random(len(self._space))
        self._asked += 1
        chosen = zip(self._space.items(), parts, strict=True)
        return self.adopt({name: dimension.at(float(part)) for (name, dimension), part in chosen})


class GridSampler(_Own):
    """Every combination once."""

    def __init__(self, space: Space) -> None:
        super().__init__()
        self._left: Iterator[dict[str, Any]] = grid_of(space)

    def ask(self) -> Configuration | None:
        values = next(self._left, None)
        return None if values is None else self.adopt(values)
