"""Samplers suggest configurations: a library's sampler behind one protocol, or one of ours."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Any, Literal, Protocol

import msgspec

from astrarium.core.random_streams import stream
from astrarium.tuning.spaces import Space, Values
from astrarium.tuning.spaces import grid as grid_of

Goal = Literal["min", "max"]


class Standing(IntEnum):
    """The standing says how a candidate ended. COMPLETE: it trained for as long as the search lets anyone;
    STOPPED: others were better; WITHDRAWN: the search ended while it trained."""

    OPEN = 0
    COMPLETE = 1
    STOPPED = 2
    FAILED = 3
    WITHDRAWN = 4


class Configuration(msgspec.Struct, frozen=True):
    """A configuration is one choice of hyperparameters; *id* is the sampler's own number."""

    id: int
    values: dict[str, Any]


class Sampler(Protocol):
    """A sampler is asked for configurations, and told what became of each: exactly once, and never OPEN.

    *goal* is what the sampler's library was told to do; None where the goal does not matter to it.
    """

    goal: Goal | None

    def ask(self) -> Configuration | None:
        """Return the next configuration; None when there are no more."""

    def adopt(self, values: Values) -> Configuration:
        """Accept a configuration of the search itself, such as a changed copy, to learn from it too."""

    def observe(self, id: int, iterations: int, value: float) -> None:
        """Hear a value on the way to the end of a trial."""

    def report(self, id: int, iterations: int, value: float) -> bool:
        """Hear a value at the end of a trial; return True if the library would stop the candidate."""

    def tell(self, id: int, value: float | None, standing: Standing) -> None:
        """Hear that a candidate has ended. *value* is its last value, if it ever had one."""


class CountingSampler:
    """A counting sampler numbers configurations itself. It learns nothing from results."""

    goal: Goal | None = None

    def __init__(self) -> None:
        self._next = 0

    def adopt(self, values: Values) -> Configuration:
        self._next += 1
        return Configuration(self._next - 1, dict(values))

    def observe(self, id: int, iterations: int, value: float) -> None:
        """There is nothing to learn."""

    def report(self, id: int, iterations: int, value: float) -> bool:
        return False

    def tell(self, id: int, value: float | None, standing: Standing) -> None:
        """There is nothing to learn."""


class RandomSampler(CountingSampler):
    """The sampler draws each configuration from its own random stream: calls in between change none."""

    def __init__(self, space: Space, seed: int = 0) -> None:
        super().__init__()
        self._space = space
        self._seed = seed
        self._asked = 0

    def ask(self) -> Configuration:
        parts = stream(self._seed, "configuration", self._asked).random(len(self._space))
        self._asked += 1
        chosen = zip(self._space.items(), parts, strict=True)
        return self.adopt({name: dimension.at(float(part)) for (name, dimension), part in chosen})


class GridSampler(CountingSampler):
    """The sampler returns every combination of the grid once."""

    def __init__(self, space: Space) -> None:
        super().__init__()
        self._left: Iterator[dict[str, Any]] = grid_of(space)

    def ask(self) -> Configuration | None:
        values = next(self._left, None)
        return None if values is None else self.adopt(values)
