"""How long requests are: distributions of whole numbers, such as the tokens of texts."""

from __future__ import annotations

import math
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
    first = max(low, high // _SHORT, 1)
    powers = [1 << power for power in range((2 * high).bit_length())]
    steps = sorted({*powers, *(power * 3 // 2 for power in powers)})
    between = [step for step in steps if first <= step < high]
    return [*between, high]


_SHORT = 32
