"""Profiling measures how long a loaded model takes, by batch size or application, on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from astrarium.core.units import SECOND, Time
from astrarium.serving.live.backends import examples
from astrarium.serving.live.backends.answers import stack
from astrarium.serving.live.backends.contract import Batch, LoadedModel
from astrarium.serving.live.tensors import Array, TensorSpec

Generator = Callable[[np.random.Generator], Mapping[str, Array]]  # the inputs of one request
Progress = Callable[[int], None]
_FEWEST, _TRIES = 5, 3
_OUT_OF_ORDER = 1.1  # times as long as a larger size; less than this does no harm


@dataclass(frozen=True)
class Care:
    """Care says how carefully to measure: runs that do not count, runs that do, and when to stop."""

    warm_up: int = 5
    repeats: int = 50
    patience: Time = 10 * SECOND  # a slow size is measured less often, but never under five times


@dataclass(frozen=True)
class MeasuredTimes:
    """Measured times are those of one batch size, in rising order."""

    size: int
    times: tuple[Time, ...]

    def quantile(self, chance: float) -> Time:
        """Return the smallest time that at least this share of the runs kept."""
        return self.times[min(len(self.times) - 1, max(0, int(np.ceil(chance * len(self.times))) - 1))]


def sizes_up_to(largest: int) -> list[int]:
    """Return the sizes 1, 2, 3, 4, 6, 8, 12, ...: close enough for straight lines between them."""
    sizes = {1, largest}
    power = 2
    while power <= largest:
        sizes |= {power, power * 3 // 2}
        power *= 2
    return sorted(size for size in sizes if size <= largest)


def by_size(
    model: LoadedModel,
    specs: Sequence[TensorSpec],
    sizes: Sequence[int],
    care: Care,
    enough: Callable[[MeasuredTimes], bool],
) -> Iterator[MeasuredTimes]:
    """Measure sizes until one is *enough*, also when it is measured again: that one is the last."""
    for size in sizes:
        found = _measured(model, specs, size, care)
        if enough(found):
            found = _measured(model, specs, size, care)
        yield found
        if enough(found):
            return


def in_order(
    model: LoadedModel,
    specs: Sequence[TensorSpec],
    measured: Sequence[MeasuredTimes],
    care: Care,
    chance: float,
) -> list[MeasuredTimes]:
    """Measure again the sizes that seem to take longer than a larger one, and keep the fastest of a few.

    Either the machine was at something else meanwhile, which the next time shows and which must not lift all
    larger sizes (`rising`), or the model is like that.
    """
    kept = list(measured)
    for place in reversed(range(len(kept) - 1)):
        larger = min(each.quantile(chance) for each in kept[place + 1 :])
        for _ in range(_TRIES):
            if kept[place].quantile(chance) > _OUT_OF_ORDER * larger:
                again = _measured(model, specs, kept[place].size, care)
                kept[place] = min(kept[place], again, key=lambda each: each.quantile(chance))
    return kept


def rising(measured: Sequence[MeasuredTimes], chance: float, slack: float = 0.0) -> dict[int, Time]:
    """Return a time for each size that never falls: noise must not make a larger batch look cheaper."""
    table: dict[int, Time] = {}
    longest = 1
    for found in measured:
        longest = max(longest, round(found.quantile(chance) * (1 + slack)))
        table[found.size] = longest
    return table


@dataclass(frozen=True)
class Fit:
    """By this fit a batch of k takes c0 + c1 k max(times alone); `error` is the mean relative deviation."""

    alone: dict[str, tuple[Time, ...]]  # by application, in rising order
    c0: Time
    c1: float
    error: float


def by_application(
    model: LoadedModel,
    generators: Mapping[str, Generator],
    sizes: Sequence[int],
    care: Care,
    progress: Progress,
) -> Fit:
    """Measure single requests of every application, then batches that mix them."""
    chance = np.random.default_rng(0)
    requests: list[tuple[str, Mapping[str, Array], Time]] = []
    for name, generate in generators.items():
        for _ in range(care.repeats):
            inputs = generate(chance)
            requests.append((name, inputs, _alone(model, inputs)))
            progress(len(requests))
    alone = {name: tuple(sorted(own for owner, _, own in requests if owner == name)) for name in generators}
    points = []
    for size in sizes:
        for _ in range(max(_FEWEST, care.repeats // len(sizes))):
            members = [requests[place] for place in chance.integers(len(requests), size=size)]
            took = _once(model, _together([inputs for _, inputs, _ in members]))
            points.append((size * max(own for _, _, own in members), took))
    return Fit(alone, *_line(points))


def _measured(model: LoadedModel, specs: Sequence[TensorSpec], size: int, care: Care) -> MeasuredTimes:
    batch = examples.batch(specs, size, np.random.default_rng(size))
    return MeasuredTimes(size, tuple(sorted(_timed(model, batch, care))))


def _timed(model: LoadedModel, batch: Batch, care: Care) -> list[Time]:
    for _ in range(care.warm_up):
        model.run(batch)
    times: list[Time] = []
    while len(times) < care.repeats and (len(times) < _FEWEST or sum(times) < care.patience):
        times.append(_once(model, batch))
    return times


def _once(model: LoadedModel, batch: Batch) -> Time:
    start = time.perf_counter_ns()
    model.run(batch)
    return max(1, time.perf_counter_ns() - start)


def _alone(model: LoadedModel, inputs: Mapping[str, Array]) -> Time:
    """Return the median time of a few runs: a single one depends on whatever else the machine does."""
    batch = _together([inputs])
    return int(median(_once(model, batch) for _ in range(_TRIES)))


def _together(requests: Sequence[Mapping[str, Any]]) -> Batch:
    names = requests[0]
    return Batch(
        len(requests), {name: stack([np.asarray(inputs[name]) for inputs in requests]) for name in names}
    )


def _line(points: Sequence[tuple[Time, Time]]) -> tuple[Time, float, float]:
    """Return (c0, c1, mean relative error) of the line that misses the points least, in relative terms."""
    x, y = (np.array(column, np.float64) for column in zip(*points, strict=True))
    scaled = np.stack([1 / y, x / y], axis=1)
    c0, c1 = np.linalg.lstsq(scaled, np.ones(len(y)), rcond=None)[0]
    if c0 < 0 or c1 <= 0:
        c0, c1 = 0.0, float((x / y).sum() / ((x / y) ** 2).sum())
    error = float(np.abs((c0 + c1 * x) / y - 1).mean())
    return round(c0), float(c1), error
