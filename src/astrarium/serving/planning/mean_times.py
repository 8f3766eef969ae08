"""A plan counts with one time for each batch size: with lengths, the mean over those of the workload."""

from __future__ import annotations

import math

import msgspec

from astrarium.core.arrivals import Ints
from astrarium.core.profiles import BySize, profile_by_length
from astrarium.core.quantities import Time
from astrarium.serving.contract import Lengths, ModelSpec
from astrarium.serving.report.padding import elements
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


class LengthMix(msgspec.Struct, frozen=True):
    """The lengths that a mean of times is over: theirs, and how much rounding them up adds to the work."""

    mean: float
    padding: float


def length_mixes(scenario: Scenario) -> dict[str, LengthMix]:
    """Return what the times of each model with lengths are means over, by name, if anybody asks for it."""
    setup = build.setup(scenario, placed=True)
    with_lengths = [spec for spec in setup.models if spec.lengths is not None]
    arrivals = build.arrivals(scenario) if with_lengths else None
    if arrivals is None:
        return {}
    lengths = {spec.name: arrivals.length[arrivals.model == spec.index] for spec in with_lengths}
    return {name: _mix(scenario, name, own) for name, own in lengths.items() if len(own)}


def _mix(scenario: Scenario, name: str, lengths: Ints) -> LengthMix:
    import numpy as np

    profile = profile_by_length(scenario.models[name].profile)
    assert profile is not None
    own, counts = np.unique(lengths, return_counts=True)
    computed = np.array([profile.rounded_up(length) for length in own.tolist()])
    if isinstance(profile, BySize):
        own, computed = (elements(numbers, profile.grid) for numbers in (own, computed))
    asked = int(own @ counts)
    return LengthMix(asked / len(lengths), 1 - asked / int(computed @ counts))


def _time(lengths: Lengths, bucket: int, size: int) -> float:
    """Return what so many requests take; those beyond the largest batch of their length run in several."""
    largest = lengths.max_batch(bucket)
    return lengths.latency[bucket][min(size, largest)] * max(1.0, size / largest)
