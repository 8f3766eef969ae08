"""A plan counts with one time for each batch size: with lengths, the mean over those of the workload."""

from __future__ import annotations

import math

from astrarium.core.quantities import Time
from astrarium.serving.contract import Lengths, ModelSpec
from astrarium.serving.scenario import Scenario, build


def mean_times(scenario: Scenario, spec: ModelSpec) -> tuple[Time, ...]:
    """Return times of batches of 0, 1, ... of like lengths, each length as often as the workload has it."""
    if spec.lengths is None:
        return spec.latency[: spec.max_batch + 1]
    counts = _counts(scenario, spec)
    largest = max(spec.lengths.max_batch(bucket) for bucket in range(len(counts)))
    times = [0]
    for size in range(1, largest + 1):
        mean = math.fsum(count * _time(spec.lengths, bucket, size) for bucket, count in enumerate(counts))
        time = max(times[-1], round(mean / sum(counts)))
        if time > spec.slo:
            break
        times.append(time)
    return tuple(times)


def _counts(scenario: Scenario, spec: ModelSpec) -> list[int]:
    """Return how many requests of each bucket the workload has; where it has none, as many of each."""
    import numpy as np

    setup = build.setup(scenario, placed=True)
    arrivals = build.arrivals(scenario)
    buckets = build.buckets(arrivals, setup)[arrivals.model == spec.index]
    assert spec.lengths is not None
    counts: list[int] = np.bincount(buckets, minlength=len(spec.lengths.longest)).tolist()
    return counts if any(counts) else [1] * len(counts)


def _time(lengths: Lengths, bucket: int, size: int) -> float:
    """Return what so many requests take; those beyond the largest batch of their length run in several."""
    largest = lengths.max_batch(bucket)
    return lengths.latency[bucket][min(size, largest)] * max(1.0, size / largest)
