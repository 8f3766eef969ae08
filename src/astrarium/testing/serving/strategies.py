"""Hypothesis strategies for the serving level: setups, and requests that arrive at them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, get_args

from hypothesis import strategies as st

from astrarium.core.quantities import MICROSECOND, MILLISECOND, Time
from astrarium.core.random_streams import stream
from astrarium.serving.contract import GpuJoined, GpuLeft, ModelSpec, Network, Request, Setup, Together
from astrarium.testing.serving.cases import (
    Case,
    cluster,
    linear_model,
    with_lengths,
)

NO_DELAY = Network()
WITH_LENGTHS = ((16, 64, 256), (8, 512))  # the longest of each bucket
MOSTLY_NONE = ((), (), (), *WITH_LENGTHS)
TOGETHER: tuple[Together, ...] = get_args(Together)


def durations(low: Time, high: Time) -> st.SearchStrategy[Time]:
    """Whole microseconds between two instants: they read well when a failure is printed."""
    return st.integers(low // MICROSECOND, high // MICROSECOND).map(lambda us: us * MICROSECOND)


@st.composite
def models(
    draw: st.DrawFn,
    index: int = 0,
    lengths: Sequence[tuple[int, ...]] = MOSTLY_NONE,
    together: Sequence[Together] = TOGETHER,
) -> ModelSpec:
    """A linear profile, with an SLO from hardly-enough-for-one to room for several batches."""
    alpha = draw(durations(200 * MICROSECOND, 4 * MILLISECOND))
    beta = draw(durations(500 * MICROSECOND, 12 * MILLISECOND))
    max_batch = draw(st.integers(1, 16))
    slo = draw(durations((alpha + beta) * 5 // 4, (alpha * 16 + beta) * 3))
    model = linear_model(alpha, beta, slo, max_batch, index)
    longest = draw(st.sampled_from(lengths))
    return with_lengths(model, longest, draw(st.sampled_from(together))) if longest else model


@st.composite
def networks(draw: st.DrawFn) -> Network:
    control = draw(durations(0, 300 * MICROSECOND))
    data = draw(durations(0, 50 * MICROSECOND))
    return Network(control, data, draw(durations(0, MILLISECOND)))


@st.composite
def setups(
    draw: st.DrawFn,
    /,
    max_models: int = 4,
    max_gpus: int = 4,
    min_models: int = 1,
    delays: st.SearchStrategy[Network] | None = None,
    **of_models: Any,
) -> Setup:
    """Models on GPUs; *of_models* are what `models` takes."""
    drawn = [draw(models(index, **of_models)) for index in range(draw(st.integers(min_models, max_models)))]
    gpus = draw(st.integers(1, max_gpus))
    network = draw(delays if delays is not None else st.one_of(st.just(NO_DELAY), networks()))
    return cluster(drawn, gpus, network, draw(durations(0, 2 * MILLISECOND)))


@st.composite
def arrivals(draw: st.DrawFn, setup: Setup, max_requests: int = 60, own_deadlines: bool = False) -> Case:
    """Poisson arrivals at a tenth to twice of what the GPUs could do with batches of middling size.

    With *own_deadlines*, requests bring objectives of their own, so that a later one may be due earlier.
    """
    number = draw(st.integers(0, max_requests))
    load = draw(st.sampled_from([0.1, 0.5, 0.9, 2.0]))
    chance = stream(draw(st.integers(0, 2**32 - 1)), "arrivals")
    gap = _mean_cost(setup) / (len(setup.gpus) * load)
    times = accumulate(1 + int(chance.exponential(gap)) for _ in range(number))
    requests = []
    for id_, at in enumerate(times):
        model = int(chance.integers(len(setup.models)))
        slo = setup.models[model].slo
        allowed = int(slo * chance.uniform(0.3, 2.0)) if own_deadlines else slo
        length, bucket = _length(setup.models[model], id_)
        requests.append(Request(id_, model, at, at + allowed, 0, length, bucket))
    return Case(setup, tuple(requests))


def _length(model: ModelSpec, number: int) -> tuple[int, int]:
    """Return length and bucket of a request: most are short; 0 where its model has no lengths."""
    if model.lengths is None:
        return 0, 0
    length = max(1, model.lengths.longest[-1] >> (number * 7 % 5))
    return length, model.lengths.bucket_of(length)


@st.composite
def cases(draw: st.DrawFn, /, max_requests: int = 60, own_deadlines: bool = False, **limits: Any) -> Case:
    """Requests that arrive at a setup; *limits* are those of `setups`."""
    return draw(arrivals(draw(setups(**limits)), max_requests, own_deadlines))


@st.composite
def gpu_changes(draw: st.DrawFn, case: Case, most: int = 8) -> tuple[tuple[Time, GpuJoined | GpuLeft], ...]:
    """GPUs that leave and join, in order of time; some leave twice or join while they are there."""
    horizon = max((request.deadline for request in case.requests), default=MILLISECOND)
    gpus = st.integers(0, len(case.setup.gpus) - 1)
    change = st.one_of(st.builds(GpuLeft, gpus), st.builds(GpuJoined, gpus))
    drawn = draw(st.lists(st.tuples(st.integers(0, horizon), change), min_size=1, max_size=most))
    return tuple(sorted(drawn, key=lambda pair: pair[0]))


def _mean_cost(setup: Setup) -> float:
    """GPU time of one request in a batch of half the largest size, over the models."""
    half = [(model, (model.max_batch + 1) // 2) for model in setup.models]
    return sum(model.latency[size] / size for model, size in half) / len(half)
