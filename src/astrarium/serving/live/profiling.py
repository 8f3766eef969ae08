"""Profiling measures how long a loaded model takes, by batch size or application, on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from astrarium.core.quantities import SECOND, Time
from astrarium.serving.live import fills, packing
from astrarium.serving.live.backends import batches, examples
from astrarium.serving.live.backends.contract import Batch, Launching, LoadedModel, graph_runner
from astrarium.serving.live.backends.own_requests import drawn
from astrarium.serving.live.backends.stacking import stack
from astrarium.serving.live.messages import BatchDone, encode
from astrarium.serving.live.tensors import BYTES, Array, TensorSpec
from astrarium.serving.live.worker.repeated_order import RepeatedOrder

Generator = Callable[[np.random.Generator], Mapping[str, Array]]  # the inputs of one request
Progress = Callable[[int], None]
_FEWEST = 5
_TRIES = 3
_IN_A_ROW = 5  # batches of a model that launches
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


Measure = Callable[[int], MeasuredTimes]  # of a batch size


def measuring(
    model: LoadedModel, specs: Sequence[TensorSpec], care: Care, data: Mapping[str, Array] | None = None
) -> Measure:
    """Return what measures a batch size of a model, with made-up inputs or with such as are in *data*."""

    def measured(size: int) -> MeasuredTimes:
        chance = np.random.default_rng(size)
        batch = drawn(specs, data, size, chance) if data else examples.batch(specs, size, chance)
        return MeasuredTimes(size, tuple(sorted(_timed(model, batch, care))))

    return measured


def by_size(
    measure: Measure, sizes: Sequence[int], enough: Callable[[MeasuredTimes], bool]
) -> Iterator[MeasuredTimes]:
    """Measure sizes until one is *enough*, also when it is measured again: that one is the last."""
    for size in sizes:
        times = measure(size)
        if enough(times):
            times = measure(size)
        yield times
        if enough(times):
            return


def in_order(measure: Measure, measured: Sequence[MeasuredTimes], chance: float) -> list[MeasuredTimes]:
    """Measure again the sizes that seem to take longer than a larger one, and keep the fastest of a few.

    Either the machine was at something else meanwhile, which the next time shows and which must not lift all
    larger sizes (`rising`), or the model is like that.
    """
    kept = list(measured)
    for place in reversed(range(len(kept) - 1)):
        larger = min(times.quantile(chance) for times in kept[place + 1 :])
        for _ in range(_TRIES):
            if kept[place].quantile(chance) > _OUT_OF_ORDER * larger:
                again = measure(kept[place].size)
                kept[place] = min(kept[place], again, key=lambda times: times.quantile(chance))
    return kept


def rising(measured: Sequence[MeasuredTimes], chance: float, slack: float = 0.0) -> dict[int, Time]:
    """Return a time for each size that never falls: noise must not make a larger batch look cheaper."""
    table: dict[int, Time] = {}
    longest = 1
    for times in measured:
        longest = max(longest, round(times.quantile(chance) * (1 + slack)))
        table[times.size] = longest
    return table


@dataclass(frozen=True)
class Fit:
    """By this fit a batch of k takes c0 + c1 k max(times alone); `error` is the mean relative deviation."""

    alone: dict[str, tuple[Time, ...]]  # by application, in rising order
    c0: Time
    c1: float
    error: float


@dataclass(frozen=True)
class _AloneRequest:
    """A request of an application took this long when it ran alone."""

    application: str
    inputs: Mapping[str, Array]
    took: Time


def by_application(
    model: LoadedModel,
    generators: Mapping[str, Generator],
    sizes: Sequence[int],
    care: Care,
    progress: Progress,
) -> Fit:
    """Measure single requests of every application, then batches that mix them."""
    chance = np.random.default_rng(0)
    requests: list[_AloneRequest] = []
    for name, generate in generators.items():
        for _ in range(care.repeats):
            inputs = generate(chance)
            requests.append(_AloneRequest(name, inputs, _alone(model, inputs)))
            progress(len(requests))
    alone = {
        name: tuple(sorted(request.took for request in requests if request.application == name))
        for name in generators
    }
    points = []
    for size in sizes:
        for _ in range(max(_FEWEST, care.repeats // len(sizes))):
            members = [requests[place] for place in chance.integers(len(requests), size=size)]
            took = _once(model, _together(model, [request.inputs for request in members]))
            points.append((size * max(request.took for request in members), took))
    return Fit(alone, *_line(points))


def _timed(model: LoadedModel, batch: Batch, care: Care) -> list[Time]:
    if graph_runner(model, batch.size, batches.length_of(model.inputs, batch)) is not None:
        return _repeated(_natively(model, batch), care, _IN_A_ROW)
    if isinstance(model, Launching) and not any(spec.datatype == BYTES for spec in model.inputs):
        return _repeated(_back_to_back(model, batch), care, _IN_A_ROW)
    return _repeated(partial(_once, model, batch), care, 1)


def _repeated(once: Callable[[], Time], care: Care, runs: int) -> list[Time]:
    """Return what *once* returns time after time, which is the mean of so many *runs*."""
    for _ in range(-(-care.warm_up // runs)):
        once()
    times: list[Time] = []
    while len(times) * runs < care.repeats or len(times) < _FEWEST:
        times.append(once())
        if len(times) >= _FEWEST and sum(times) * runs >= care.patience:
            break
    return times


def _natively(model: Any, batch: Batch) -> Callable[[], Time]:
    """Return the same for a model whose batches need no Python."""
    orders = RepeatedOrder(model, batch)

    def once() -> Time:
        done = orders.carried_out(_IN_A_ROW + 1)
        return max(1, (done[-1].finished - done[0].finished) // _IN_A_ROW)

    return once


def _back_to_back(model: Any, batch: Batch) -> Callable[[], Time]:
    """Return what runs some more batches of a launching model and says how long each kept GPU and worker.

    Inputs travel while the batch before is computed, and the worker's own work is done too, as where it has
    enough to do: of small batches it is that which takes longest. What the end of one batch is seen late by,
    the next one takes less; so it is the mean of several that counts.
    """
    orders = RepeatedOrder(model, batch)
    ahead = orders.launched()
    ended = time.monotonic_ns()

    def once() -> Time:
        nonlocal ahead, ended
        before = ended
        for _ in range(_IN_A_ROW):
            turn = ahead
            ahead = orders.launched()
            _, ran = turn.take(ended, time.monotonic_ns)
            turn.reply(ran.result)
            encode(BatchDone(0, 0, ended, ended, ended, ended))
            ended = time.monotonic_ns()
        return max(1, (ended - before) // _IN_A_ROW)

    return once


def _once(model: LoadedModel, batch: Batch) -> Time:
    start = time.perf_counter_ns()
    model.run(batch)
    return max(1, time.perf_counter_ns() - start)


def _alone(model: LoadedModel, inputs: Mapping[str, Array]) -> Time:
    """Return the median time of a few runs: a single one depends on whatever else the machine does."""
    batch = _together(model, [inputs])
    return int(median(_once(model, batch) for _ in range(_TRIES)))


def _together(model: LoadedModel, requests: Sequence[Mapping[str, Any]]) -> Batch:
    items = {name: [np.asarray(inputs[name]) for inputs in requests] for name in requests[0]}
    if packing.is_packed(model.inputs):
        return batches.packed(model.inputs, items)
    arrays = {name: stack(column) for name, column in items.items()}
    own = {name: [np.shape(inputs[name]) for inputs in requests] for name in arrays}
    return Batch(len(requests), fills.filled(model.inputs, arrays, own) if model.inputs else arrays)


def _line(points: Sequence[tuple[Time, Time]]) -> tuple[Time, float, float]:
    """Return (c0, c1, mean relative error) of the line that misses the points least, in relative terms."""
    x, y = (np.array(column, np.float64) for column in zip(*points, strict=True))
    scaled = np.stack([1 / y, x / y], axis=1)
    c0, c1 = np.linalg.lstsq(scaled, np.ones(len(y)), rcond=None)[0]
    if c0 < 0 or c1 <= 0:
        c0 = 0.0
        c1 = float((x / y).sum() / ((x / y) ** 2).sum())
    error = float(np.abs((c0 + c1 * x) / y - 1).mean())
    return round(c0), float(c1), error
