"""Execution times that are distributions: what a dynamic model's single request may take.

Every value is a whole number of nanoseconds and at least one. `cdf` is all that estimates need: quantiles
come from it by bisection over integers, so they need no numerical library and no tolerance.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec

from astrarium.core.errors import InputError
from astrarium.core.quantities import FOREVER, LONGEST, Duration, Time, write_duration

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Times = npt.NDArray[np.int64]
    Generator = np.random.Generator

# The upper bounds are beyond reason, and keep sums and products finite.
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e6)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1e15)]
Weight = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
Sigma = Annotated[float, msgspec.Meta(gt=0, le=20)]

_GRID = 400  # points of the expected maximum's integral: relative error under 1e-3
SLACK = 1e-6  # of weights that should sum to 1
_TAIL = 20.0  # the integral's ends in logits: a chance of 2e-9 on either side
_LOGITS = [_TAIL * (2 * point / (_GRID - 1) - 1) for point in range(_GRID)]


class Distribution(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    form: ClassVar[str] = ""  # its key in a scenario file

    def cdf(self, time: Time) -> float:
        """The chance of a value of at most *time*."""
        raise NotImplementedError

    def sample(self, generator: Generator, count: int) -> Times:
        raise NotImplementedError

    def quantile(self, chance: float, low: Time = 0, step: Time = 1) -> Time:
        """The smallest time t with cdf(t) >= *chance*; it lies above *low*, by about *step*."""
        high = low + step
        while high < FOREVER and self.cdf(high) < chance:
            low = high
            step = 2 * step
            high = low + step
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.cdf(middle) < chance else (low, middle)
        return high

    def quantile_of_maximum(self, count: int, chance: float) -> Time:
        """Of the largest of *count* independent draws: its cdf is the single one to that power."""
        return self.quantile(chance ** (1 / count))

    def grid(self) -> list[tuple[Time, float]]:
        """(width, cdf in the middle) of slices that cover all but the last of both tails.

        Their ends are even in the logit of the chance, so that both tails are resolved.
        """
        ends = [0]
        for logit in _LOGITS:
            chance = 1 / (1 + math.exp(-logit))
            step = ends[-1] - ends[-2] if len(ends) > 1 else 1
            if self.cdf(ends[-1]) < chance:
                ends.append(self.quantile(chance, ends[-1], step))
        return [(high - low, self.cdf((low + high) // 2)) for low, high in pairwise(ends)]


def mean_of_maximum(grid: Sequence[tuple[Time, float]], count: int) -> Time:
    """The expected largest of *count* draws, the integral of 1 - F(t)^count, from `Distribution.grid`."""
    return round(math.fsum(width * (1 - below**count) for width, below in grid))


class Constant(Distribution, frozen=True):
    form = "constant"
    time: Duration

    def __post_init__(self) -> None:
        if self.time < 1:
            raise InputError("", write_duration(self.time), "a duration above 0")

    def cdf(self, time: Time) -> float:
        return 1.0 if time >= self.time else 0.0

    def sample(self, generator: Generator, count: int) -> Times:
        import numpy as np

        return np.full(count, self.time, np.int64)


class Normal(Distribution, frozen=True):
    """Values under a nanosecond count as one."""

    form = "normal"
    mean: Duration
    std: Duration = Duration(0)

    def cdf(self, time: Time) -> float:
        return _bell(time, self.mean, self.std)

    def sample(self, generator: Generator, count: int) -> Times:
        return _whole(generator.normal(self.mean, self.std, count))


class LogNormal(Distribution, frozen=True):
    form = "lognormal"
    median: Duration
    sigma: Sigma

    def __post_init__(self) -> None:
        if self.median < 1:
            raise InputError("median", self.median, "a duration above 0")

    def cdf(self, time: Time) -> float:
        return 0.0 if time < 1 else _normal_cdf(math.log((time + 0.5) / self.median) / self.sigma)

    def sample(self, generator: Generator, count: int) -> Times:
        # the generator's own exponential: numpy's vectorized one differs between processors
        return _whole(generator.lognormal(math.log(self.median), self.sigma, count))


class Mode(Normal, frozen=True):
    weight: Weight = 1.0


class Modes(Distribution, frozen=True):
    """Several bells, such as short and long inputs."""

    form = "modes"
    modes: tuple[Mode, ...]

    def __post_init__(self) -> None:
        weights = [mode.weight for mode in self.modes]
        if not is_weighty(weights):
            raise InputError("", weights, "at least one mode with a weight above 0")
        if not add_up(weights):
            raise InputError("", weights, "weights that sum to 1, or equal ones")

    def cdf(self, time: Time) -> float:
        total = math.fsum(mode.weight for mode in self.modes)
        return math.fsum(mode.weight * mode.cdf(time) for mode in self.modes) / total

    def sample(self, generator: Generator, count: int) -> Times:
        return Mixture(self.modes, tuple(mode.weight for mode in self.modes)).sample(generator, count)


class Histogram(Distribution, frozen=True):
    """Bin i holds `counts[i]` between `edges[i]` and `edges[i + 1]`, evenly."""

    form = "histogram"
    edges: tuple[Duration, ...]
    counts: tuple[Weight, ...]

    def __post_init__(self) -> None:
        if len(self.counts) != len(self.edges) - 1 or not is_weighty(self.counts):
            raise InputError("counts", self.counts, "one count between every two edges, their sum above 0")
        if any(low >= high for low, high in pairwise(self.edges)):
            raise InputError("edges", [write_duration(edge) for edge in self.edges], "edges that rise")

    def cdf(self, time: Time) -> float:
        place = bisect_right(self.edges, time) - 1
        if place < 0 or time < 1:
            return 0.0
        if place >= len(self.counts):
            return 1.0
        low = self.edges[place]
        high = self.edges[place + 1]
        inside = self.counts[place] * (time - low) / (high - low)
        return (math.fsum(self.counts[:place]) + inside) / math.fsum(self.counts)

    def sample(self, generator: Generator, count: int) -> Times:
        import numpy as np

        below = np.concatenate(([0.0], np.cumsum(self.counts)))
        return _whole(np.interp(generator.random(count) * below[-1], below, self.edges))


class Samples(Distribution, frozen=True):
    """Measured times, each as likely as any other, in rising order."""

    form = "samples"
    times: tuple[Duration, ...]
    file: str = ""  # where they were read

    def __post_init__(self) -> None:
        if not self.times:
            raise InputError("", self.file or self.times, "at least one measured time")
        if self.times[0] < 0 or any(low > high for low, high in pairwise(self.times)):
            raise InputError("", self.times, "times of at least 0 in rising order")

    def cdf(self, time: Time) -> float:
        return bisect_right(self.times, time) / len(self.times) if time >= 1 else 0.0

    def sample(self, generator: Generator, count: int) -> Times:
        import numpy as np

        return _whole(np.array(self.times)[generator.integers(len(self.times), size=count)])


class Mixture(Distribution, frozen=True):
    """First chance picks the part, by weight, then the part draws."""

    parts: tuple[Distribution, ...]
    weights: tuple[float, ...]

    def cdf(self, time: Time) -> float:
        total = math.fsum(self.weights)
        weighted = zip(self.parts, self.weights, strict=True)
        return math.fsum(weight * part.cdf(time) for part, weight in weighted) / total

    def sample(self, generator: Generator, count: int) -> Times:
        import numpy as np

        chosen = choose(generator, self.weights, count)
        times = np.empty(count, np.int64)
        for index, part in enumerate(self.parts):
            mine = chosen == index
            times[mine] = part.sample(generator, int(mine.sum()))
        return times


def is_weighty(weights: Sequence[float]) -> bool:
    """Whether chance can pick by these weights: none is negative or NaN, and their sum is above 0."""
    return all(0 <= weight < math.inf for weight in weights) and 0 < sum(weights) < math.inf


def add_up(weights: Sequence[float]) -> bool:
    """Whether they are the parts of a whole. Equal ones are: so are those that nobody gave."""
    return max(weights) == min(weights) or abs(math.fsum(weights) - 1) <= SLACK


def choose(generator: Generator, weights: Sequence[float], count: int) -> Times:
    """*count* indices, each drawn with its weight."""
    import numpy as np

    bounds = np.array(list(accumulate(weights)))
    drawn: Times = np.searchsorted(bounds, generator.random(count) * bounds[-1], side="right")
    return np.minimum(drawn, len(weights) - 1)


def _bell(time: Time, mean: Time, std: Time) -> float:
    if time < 1:
        return 0.0
    if not std:
        return 1.0 if time >= mean else 0.0
    return _normal_cdf((time + 0.5 - mean) / std)


def _normal_cdf(score: float) -> float:
    return 0.5 * math.erfc(-score / math.sqrt(2))


def _whole(times: npt.NDArray[Any]) -> Times:
    import numpy as np

    whole: Times = np.clip(np.rint(times), 1, LONGEST).astype(np.int64)
    return whole


DISTRIBUTIONS: dict[str, type[Distribution]] = {
    kind.form: kind for kind in (Constant, Normal, LogNormal, Modes, Histogram, Samples)
}
