"""How long a batch takes: what a model's profile promises, by batch size and kind of GPU."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import count, groupby, pairwise, repeat
from typing import Annotated, ClassVar, Literal

import msgspec

from astrarium.core.distributions import (
    Distribution,
    Mixture,
    Positive,
    Share,
    Weight,
    add_up,
    is_weighty,
    mean_of_maximum,
)
from astrarium.core.errors import InputError
from astrarium.core.quantities import LONGEST, Duration, Time, check_order, write_duration
from astrarium.core.size_grid import Size, SizeGrid, written

Estimate = Annotated[
    Literal["p99", "mean", "p50", "mean_request"],
    msgspec.Meta(description="what policies are told of a time that is a distribution"),
]
_CHANCE = {"p99": 0.99, "p50": 0.5}
_Length = Annotated[int, msgspec.Meta(le=1 << 30)]  # as a request's can be
_Size = Annotated[int, msgspec.Meta(le=1 << 16)]  # of batches: a time is worked out for each


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    form: ClassVar[str] = ""

    def on(self, kind: str) -> Profile:
        """The profile on one kind of GPU."""
        return self

    def batch_times(self) -> Iterator[Time]:
        """The estimates for batches of 1, 2, ...: for as long as larger ones can run."""
        raise NotImplementedError


class Linear(Profile, frozen=True):
    """l(b) = alpha b + beta."""

    alpha: Duration
    beta: Duration

    def __post_init__(self) -> None:
        if self.alpha + self.beta < 1:
            raise InputError("alpha", self.alpha, "alpha + beta above 0: one request takes time")

    def batch_times(self) -> Iterator[Time]:
        return (self.alpha * size + self.beta for size in count(1))


class Table(Profile, frozen=True):
    """Measured batch sizes, straight lines between them, and no batch larger than the largest."""

    form = "table"
    points: dict[int, Duration]

    def __post_init__(self) -> None:
        sizes = list(self.points)
        times = list(self.points.values())
        if not sizes or sizes[0] != 1 or sizes != sorted(set(sizes)):
            raise InputError("", sizes, "batch sizes that rise from 1")
        if times[0] < 1 or times != sorted(times):
            raise InputError(
                "", [write_duration(time) for time in times], "times above 0 that never fall as batches grow"
            )

    def batch_times(self) -> Iterator[Time]:
        return (self._time(size) for size in range(1, max(self.points) + 1))

    def _time(self, size: int) -> Time:
        if size in self.points:
            return self.points[size]
        sizes = list(self.points)
        place = bisect_left(sizes, size)
        low = sizes[place - 1]
        high = sizes[place]
        rise = self.points[high] - self.points[low]
        return self.points[low] + rise * (size - low) // (high - low)


class ByLength(Profile, frozen=True):
    """Measured times by length, then by batch size: for requests of unequal length, such as texts.

    A batch takes as long as if all its requests had the length of the longest. Where it is `rounded`, batches
    run at the measured lengths only, and shorter ones are padded to the next; else straight lines lie between
    measured lengths. `together` says which requests can share a run: any ("padded"), those that are rounded
    to the same length ("bucket"), or those of exactly one ("length"); a batch of others takes several runs.
    The `shares` of requests that are rounded up to each length, where they were seen, change no time: workers
    prepare first for those that come most often.
    """

    form = "lengths"
    lengths: dict[_Length, dict[_Size, Duration]]
    rounded: bool = False
    together: Literal["padded", "bucket", "length"] = "padded"
    shares: dict[_Length, Weight] = {}

    def __post_init__(self) -> None:
        lengths = list(self.lengths)
        if not lengths or lengths[0] < 1 or lengths != sorted(set(lengths)):
            raise InputError("lengths", lengths, "lengths of at least 1 that rise")
        for length, points in self.lengths.items():
            try:
                Table(points)
            except InputError as error:
                raise error.at(f"lengths.{self.named(length)}") from None
        if self.together == "bucket" and not self.rounded:
            raise InputError(
                "together", self.together, "`rounded: true` beside it: buckets are what is rounded to"
            )
        if self.shares and not (set(self.shares) <= set(lengths) and is_weighty(list(self.shares.values()))):
            raise InputError("shares", self.shares, "weights of some of the lengths, at least one above 0")
        self._check_rising()

    def _check_rising(self) -> None:
        for shorter, longer in pairwise(self.lengths):
            most = max(self.lengths[shorter])
            if (largest := max(self.lengths[longer])) > most:
                expected = f"batches of at most {most}, as for the length {self.named(shorter)}"
                raise InputError(f"lengths.{self.named(longer)}.{largest}", largest, expected)
            times = zip(self._row(shorter), self._row(longer), strict=False)
            for size, (before, after) in enumerate(times, 1):
                if before > after:
                    expected = f"at least {write_duration(before)}, as for the length {self.named(shorter)}"
                    raise InputError(f"lengths.{self.named(longer)}.{size}", write_duration(after), expected)

    def named(self, length: int) -> str:
        """Return one of the lengths as people write it."""
        return str(length)

    @property
    def longest(self) -> int:
        return max(self.lengths)

    def batch_times(self) -> Iterator[Time]:
        """Return the times of batches of the longest requests."""
        return iter(self._row(self.longest))

    def buckets(self) -> dict[int, tuple[Time, ...]]:
        """Return times by the lengths that policies plan with: each stands for those up to it from the last.

        These are the measured ones, where batches are rounded up to them, and else as many between as make
        the steps small.
        """
        return {length: self.times(length) for length in (self.lengths if self.rounded else self._finer())}

    def times(self, length: int) -> tuple[Time, ...]:
        """Return what batches of 1, 2, ... take whose longest request has this length."""
        lengths = list(self.lengths)
        place = min(bisect_left(lengths, length), len(lengths) - 1)
        high = lengths[place]
        if self.rounded or place == 0 or length >= high:
            return self._row(high)
        low = lengths[place - 1]
        rows = zip(self._row(low), self._row(high), strict=False)
        return tuple(before + (after - before) * (length - low) // (high - low) for before, after in rows)

    def rounded_up(self, length: int) -> int:
        """Return the length that a run has whose longest request has this one; at most the longest known."""
        if not self.rounded:
            return length
        return next((one for one in self.lengths if one >= length), self.longest)

    def runs(self, lengths: Sequence[int]) -> list[tuple[int, int]]:
        """Return the size and the length of every run that a batch of requests of these lengths takes."""
        if self.together == "padded":
            return [(len(lengths), self.rounded_up(max(lengths)))]
        exact = self.together == "length"
        alike = groupby(sorted(lengths), key=lambda length: length if exact else self.rounded_up(length))
        return [(len(list(members)), self.rounded_up(length)) for length, members in alike]

    def _row(self, length: int) -> tuple[Time, ...]:
        return _rows(tuple(self.lengths[length].items()))

    def _finer(self) -> list[int]:
        lengths = list(self.lengths)
        steps = max(1, _BUCKETS // max(1, len(lengths) - 1))
        between = {
            low + (high - low) * step // steps for low, high in pairwise(lengths) for step in range(1, steps)
        }
        return sorted({*lengths, *between})


class BySize(ByLength, frozen=True):
    """Measured times of items with several open dimensions, such as images, by size, then by batch size.

    The length of a request is the number of its shape in the grid of *sizes* (`SizeGrid`). A run has one of
    these sizes; what is rounded up to another one runs apart.
    """

    sizes: tuple[Size, ...] = ()
    rounded: bool = True
    together: Literal["padded", "bucket", "length"] = "bucket"

    @property
    def grid(self) -> SizeGrid:
        return _grid_of(self.sizes)

    def named(self, length: int) -> str:
        return written(self.sizes[self.grid.longest.index(length)])


def by_size(
    tables: Mapping[Size, dict[_Size, Duration]], together: Literal["bucket", "length"] = "bucket"
) -> BySize:
    """Return a profile by size, the sizes in an order in which no batch takes less time than before."""
    try:
        grid = _grid_of(tuple(tables))
    except InputError as error:
        raise error.at(BySize.form) from None
    return BySize(dict(zip(grid.longest, tables.values(), strict=True)), sizes=grid.sizes, together=together)


@lru_cache(maxsize=64)
def _grid_of(sizes: tuple[Size, ...]) -> SizeGrid:
    return SizeGrid(sizes)


_BUCKETS = 32  # about so many steps: a policy looks at each


@lru_cache(maxsize=1024)
def _rows(points: tuple[tuple[int, Duration], ...]) -> tuple[Time, ...]:
    return tuple(Table(dict(points)).batch_times())


class Kinds(Profile, frozen=True):
    """A profile for each kind of GPU, for clusters that mix them."""

    form = "kinds"
    kinds: dict[str, Profile]

    def on(self, kind: str) -> Profile:
        return self.kinds[kind]


class TimeChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Requests that arrive from *at* on take this time instead."""

    at: Duration
    time: Distribution


def profile_by_length(profile: Profile) -> ByLength | None:
    """Return what a profile says of lengths, on any kind of GPU: all kinds have the same ones."""
    if isinstance(profile, Kinds):
        profile = next(iter(profile.kinds.values()))
    return profile if isinstance(profile, ByLength) else None


class Application(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One source of a dynamic model's requests, and how long a request of it takes alone.

    It may drift: `changes` are unknown beforehand, so that estimates come from the original time.
    """

    time: Distribution
    share: Share = 1.0
    changes: tuple[TimeChange, ...] = ()

    def __post_init__(self) -> None:
        check_order([change.at for change in self.changes])


class Dynamic(Profile, frozen=True):
    """Inputs of unequal size, padded to the longest: a batch of k takes c0 + c1 k max(single times).

    Yu's dissertation, chapter 4 (Orloj). Who will be in a future batch is unknown, so the estimates are of
    k draws from the mixture of all applications; `mean_request` is the estimate of systems that know one mean
    time for all requests and forget that a batch waits for its longest.
    """

    form = "dynamic"
    applications: dict[str, Application]
    c0: Duration = Duration(0)
    c1: Positive = 1.0
    estimate: Estimate = "p99"

    def __post_init__(self) -> None:
        if not self.applications:
            raise InputError("applications", self.applications, "at least one application")
        shares = {name: application.share for name, application in self.applications.items()}
        if not add_up(list(shares.values())):
            raise InputError("applications", shares, "shares that sum to 1, or equal ones")

    def batch_times(self) -> Iterator[Time]:
        return (self.batch_time(size, longest) for size, longest in enumerate(self._longest(), 1))

    def batch_time(self, size: int, longest: Time) -> Time:
        """The time of a batch whose longest member takes *longest* alone."""
        return min(max(1, self.c0 + round(self.c1 * size * longest)), LONGEST)

    def mixture(self) -> Mixture:
        applications = self.applications.values()
        return Mixture(
            tuple(application.time for application in applications),
            tuple(application.share for application in applications),
        )

    def _longest(self) -> Iterator[Time]:
        mixture = self.mixture()
        if self.estimate == "mean_request":
            return repeat(mean_of_maximum(_grid(mixture), 1))
        if self.estimate == "mean":
            grid = _grid(mixture)
            return (mean_of_maximum(grid, size) for size in count(1))
        chance = _CHANCE[self.estimate]
        return (mixture.quantile_of_maximum(size, chance) for size in count(1))


@lru_cache(maxsize=64)
def _grid(mixture: Mixture) -> list[tuple[Time, float]]:
    """Remembered: it takes longer than a short simulation, and every run of a scenario asks for it."""
    return mixture.grid()
