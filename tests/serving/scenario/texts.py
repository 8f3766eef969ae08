"""Models whose requests have lengths: short batches take what a launch takes, long ones grow with tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from astrarium.core.profiles import ByLength
from astrarium.core.quantities import Duration, Time
from astrarium.serving.contract import Lengths, ModelSpec, Request, Setup, Together, latency_table
from astrarium.serving.scenario import Scenario, parse
from astrarium.testing.serving.cases import cluster
from tests.support.rival_runs import ms

LONGEST = (16, 64, 256)


def surface(
    flat: float = 1.0,
    per_token: float = 0.004,
    sizes: int = 16,
    longest: tuple[int, ...] = LONGEST,
) -> tuple[tuple[Time, ...], ...]:
    """Return a table for each length: *flat* milliseconds, or as many as the tokens of the batch take."""
    return tuple(
        latency_table([ms(max(flat, per_token * length * size)) for size in range(1, sizes + 1)])
        for length in longest
    )


def model_with_lengths(
    slo: float = 50, together: Together = "padded", index: int = 0, **shape: Any
) -> ModelSpec:
    tables = surface(**shape)
    return ModelSpec(
        index,
        f"m{index}",
        ms(slo),
        tables[-1],
        None,
        Lengths(shape.get("longest", LONGEST), tables, together),
    )


def setup_with_lengths(gpus: int = 1, **model: Any) -> Setup:
    return cluster([model_with_lengths(**model)], gpus)


def requests_of(setup: Setup, arrivals: Iterable[tuple[float, int]]) -> tuple[Request, ...]:
    """Return requests for (milliseconds, length) pairs to the first model."""
    model = setup.models[0]
    assert model.lengths is not None
    return tuple(
        Request(id_, 0, ms(at), ms(at) + model.slo, 0, length, model.lengths.bucket_of(length))
        for id_, (at, length) in enumerate(sorted(arrivals))
    )


def profile(
    rows: Mapping[int, Mapping[int, float]], rounded: bool = False, together: Together = "padded"
) -> ByLength:
    """Return a profile of rows such as {16: {1: 1, 4: 2}}, in milliseconds."""
    lengths = {
        length: {size: Duration(ms(time)) for size, time in row.items()} for length, row in rows.items()
    }
    return ByLength(lengths, rounded, together)


TEXTS = """\
cluster: {gpus: 2}
models:
  encoder:
    slo: 50ms
    max_batch: 16
    profile:
      rounded: true
      lengths:
        16: {1: 1ms, 16: 1.5ms}
        64: {1: 1ms, 16: 4ms}
        256: {1: 1.2ms, 16: 16ms}
workload:
  arrivals: poisson
  rate: 1500/s
  duration: 1s
  lengths: {weights: {16: 5, 64: 3, 256: 1}}
"""


def texts(**sections: Any) -> Scenario:
    """Return the scenario with some sections changed; `profile` and `workload` are changed key by key."""
    raw = yaml.safe_load(TEXTS)
    raw["models"]["encoder"]["profile"] |= sections.pop("profile", {})
    raw["workload"] |= sections.pop("workload", {})
    return parse({**raw, **sections})
