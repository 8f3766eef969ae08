"""How long requests are: distributions of whole numbers, such as the tokens of texts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec

from astrarium.core.distributions import Sigma, Weight, choose, is_weighty
from astrarium.core.errors import InputError

Length = Annotated[int, msgspec.Meta(ge=1, le=1 << 30)]
if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Lengths = npt.NDArray[np.int32]


class LengthDistribution(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    form: ClassVar[str] = ""  # its key in a scenario file

    def draw(self, generator: np.random.Generator, count: int) -> npt.NDArray[Any]:
        """Draw lengths, before they are cut to what a model takes."""
        raise NotImplementedError

    @property
    def largest(self) -> int:
        """Return the largest length that is stated; 0 where texts are simply cut off."""
        return 0

    def sample(self, generator: np.random.Generator, count: int, longest: int) -> Lengths:
        """Draw lengths; what is longer than a model takes is cut off, as a tokenizer does it."""
        import numpy as np

        lengths: Lengths = np.clip(np.rint(self.draw(generator, count)), 1, longest).astype(np.int32)
        return lengths


class ConstantLength(LengthDistribution, frozen=True):
    form = "constant"
    length: Length

    @property
    def largest(self) -> int:
        return self.length

    def draw(self, generator: np.random.Generator, count: int) -> npt.NDArray[Any]:
        import numpy as np

        return np.full(count, self.length)


class UniformLength(LengthDistribution, frozen=True):
    """Every length from *low* to *high*, both included, is as likely as any other."""

    form = "uniform"
    low: Length
    high: Length

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise InputError("low", self.low, f"at most {self.high}, as `high` says")

    @property
    def largest(self) -> int:
        return self.high

    def draw(self, generator: np.random.Generator, count: int) -> npt.NDArray[Any]:
        return generator.integers(self.low, self.high, count, endpoint=True)


class LogNormalLength(LengthDistribution, frozen=True):
    """Texts of all sizes: half are longer than the median, few much longer."""

    form = "lognormal"
    median: Annotated[float, msgspec.Meta(gt=0, le=1 << 30)]
    sigma: Sigma

    def draw(self, generator: np.random.Generator, count: int) -> npt.NDArray[Any]:
        return generator.lognormal(math.log(self.median), self.sigma, count)


class WeightedLength(LengthDistribution, frozen=True):
    form = "weights"
    weights: dict[Length, Weight]

    def __post_init__(self) -> None:
        if not self.weights or not is_weighty(list(self.weights.values())):
            raise InputError("", self.weights, "lengths with weights, at least one above 0")

    @property
    def largest(self) -> int:
        return max(self.weights)

    def draw(self, generator: np.random.Generator, count: int) -> npt.NDArray[Any]:
        import numpy as np

        return np.array(list(self.weights))[choose(generator, list(self.weights.values()), count)]


class SampledLength(LengthDistribution, frozen=True):
    """Lengths that were seen, each as likely as any other."""

    form = "samples"
    lengths: tuple[Length, ...]
    file: str = ""  # where they were read

    def __post_init__(self) -> None:
        if not self.lengths:
            raise InputError("", self.file or self.lengths, "at least one length")

    @property
    def largest(self) -> int:
        return max(self.lengths)

    def draw(self, generator: np.random.Generator, count: int) -> npt.NDArray[Any]:
        import numpy as np

        return np.array(self.lengths)[generator.integers(len(self.lengths), size=count)]


LENGTH_DISTRIBUTIONS: dict[str, type[LengthDistribution]] = {
    kind.form: kind
    for kind in (ConstantLength, UniformLength, LogNormalLength, WeightedLength, SampledLength)
}


def lengths_between(low: int, high: int) -> list[int]:
    """Return the lengths to round up to within a range: 1, 1.5, 2, 3, 4, 6, ... times a power of two.

    They end with the longest, and begin where rounding up costs next to nothing: with a 32nd of it.
    """
    return steps_between(max(low, high // _SHORT, 1), high)


def steps_between(first: int, last: int) -> list[int]:
    """Return those of the numbers 1, 1.5, 2, 3, 4, 6, ... times a power of two, and the last one."""
    powers = [1 << power for power in range((2 * last).bit_length())]
    steps = sorted({*powers, *(power * 3 // 2 for power in powers)})
    return [*(step for step in steps if first <= step < last), last]


_SHORT = 32


def least_padded(lengths: Sequence[int], longest: int, count: int) -> list[int]:
    """Return at most *count* lengths to round up to, by which requests of these *lengths* are padded least.

    The last is the *longest*, which any request to come may have. A dynamic program finds them among those
    that occur: the best way to round up to each with one stretch more continues the best way with one less.
    """
    import numpy as np

    occurring = {min(length, longest) for length in lengths} | {longest}
    if len(occurring) <= count:
        return sorted(occurring)
    steps = sorted({min(_coarse(length), longest) for length in occurring})
    requests = np.bincount(np.searchsorted(steps, lengths).clip(max=len(steps) - 1), minlength=len(steps))
    before = np.concatenate([[0], np.cumsum(requests)])[: len(steps)]  # requests below each step, from 0 on
    up_to = np.cumsum(requests)
    # From the step before `first` (a row) up to a step (a column): what all that is rounded to it comes to.
    total = np.array(steps)[None, :] * (up_to[None, :] - before[:, None])
    rounded = np.where(np.tri(len(steps), k=-1, dtype=bool), np.inf, total)
    return [steps[place] for place in _cheapest(rounded, count)]


def _cheapest(rounded: npt.NDArray[Any], count: int) -> list[int]:
    """Return the last places of *count* stretches at most that cover all places, and cost the least in all.

    *rounded* has what a stretch costs, by its first place and its last.
    """
    import numpy as np

    cost = rounded[0]
    firsts = [np.zeros(len(cost), np.int64)]  # by the number of stretches, and the last place of the last one
    for _ in range(count - 1):
        continued = np.concatenate([[0.0], cost[:-1]])[:, None] + rounded
        firsts.append(continued.argmin(axis=0))
        cost = continued.min(axis=0)
    lasts = [len(cost) - 1]
    for first in reversed(firsts):
        if first[lasts[-1]] == 0:
            break
        lasts.append(int(first[lasts[-1]]) - 1)
    return lasts[::-1]


def _coarse(length: int) -> int:
    """Round up to what a GPU computes fastest, multiples of 8, and to so few that they can all be compared.

    Lengths below 64 stay: there it would be more than an eighth. From 512 on it is at most a 32nd.
    """
    grain = 1 if length < 64 else max(8, 1 << (length.bit_length() - 6))
    return -(-length // grain) * grain
