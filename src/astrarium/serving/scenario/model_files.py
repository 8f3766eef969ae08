"""Model files are what workers load for each model of a scenario."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from astrarium.core.errors import InputError, one_of
from astrarium.core.profiles import ByLength, BySize, Dynamic, profile_by_length
from astrarium.core.quantities import Time
from astrarium.core.random_streams import stream
from astrarium.core.size_grid import Size
from astrarium.serving.scenario.schema import Model, Scenario
from astrarium.serving.scenario.served import specs
from astrarium.serving.scenario.tensor_entries import EMULATED

if TYPE_CHECKING:
    from astrarium.serving.live.backends.contract import ModelFiles
from astrarium.serving.scenario.build import batch_times

SAMPLES = (
    1024  # times alone that an emulated application draws from, and lengths that show how often each comes
)


def files_of_model(scenario: Scenario, name: str, table: Sequence[Time], kind: str) -> ModelFiles:
    """Return what a worker on a kind of GPU loads; *table* has the times of batches of 0, 1, ... there."""
    from astrarium.serving.live.backends.contract import ModelFiles
    from astrarium.serving.live.fills import marked

    model = scenario.models[name]
    options = dict(model.backend.options)
    if model.backend.name == EMULATED:
        options = _emulated(model, name, scenario.seed, table, kind)
    fills = model.lengths, model.mask, model.offsets, model.pack
    inputs = marked(specs(model.inputs), *fills) if model.inputs else ()
    return ModelFiles(
        name,
        model.backend.name,
        options,
        inputs,
        specs(model.outputs),
        max_batch=largest_batch(model, table),
        buckets=_buckets(model),
        bucket_sizes=_bucket_sizes(model),
        bucket_shares=_bucket_shares(scenario, name),
        sizes=_sizes(model),
        lengths=model.lengths,
        mask=model.mask,
        offsets=model.offsets,
        pack=model.pack,
    )


def largest_batch(model: Model, table: Sequence[Time]) -> int:
    """Return the largest batch that a model may be sent, whatever the lengths in it."""
    by_length = profile_by_length(model.profile)
    if by_length is None:
        return len(table) - 1
    return max(_largest_of(model, length) for length in by_length.lengths)


def _buckets(model: Model) -> tuple[int, ...]:
    """Return the lengths that batches are rounded up to, or have exactly; none where they have any.

    What is packed has any, but for each of these a largest batch.
    """
    by_length = profile_by_length(model.profile)
    if by_length is None or isinstance(by_length, BySize):
        return ()
    stated = by_length.rounded or by_length.together == "length" or model.pack
    return tuple(by_length.lengths) if stated else ()


def _sizes(model: Model) -> tuple[Size, ...]:
    """Return the sizes that batches are rounded up to, of a model with several open dimensions."""
    by_length = profile_by_length(model.profile)
    return by_length.sizes if isinstance(by_length, BySize) else ()


def _bucket_sizes(model: Model) -> tuple[int, ...]:
    """Return the largest batch of each of these lengths that is ever sent."""
    return tuple(_largest_of(model, length) for length in _buckets(model))


def _bucket_shares(scenario: Scenario, name: str) -> tuple[float, ...]:
    """Return how often requests are rounded up to each of these, where profile or workload says so."""
    buckets = _buckets(scenario.models[name])
    by_length = profile_by_length(scenario.models[name].profile)
    if by_length is None or not buckets:
        return ()
    if by_length.shares:
        return tuple(by_length.shares.get(length, 0.0) for length in buckets)
    if name not in (known := scenario.workload.lengths or {}):
        return ()
    drawn = known[name].sample(stream(scenario.seed, "lengths", name), SAMPLES, by_length.longest)
    counts = Counter(buckets[bisect_left(buckets, length)] for length in drawn.tolist())
    return tuple(counts[length] / SAMPLES for length in buckets)


def _largest_of(model: Model, length: int) -> int:
    by_length = profile_by_length(model.profile)
    assert by_length is not None
    return max(1, min(model.max_batch, sum(time <= model.slo for time in by_length.times(length))))


def _emulated(model: Model, name: str, seed: int, table: Sequence[Time], kind: str) -> dict[str, Any]:
    profile = model.profile.on(kind)
    if isinstance(profile, ByLength):
        return {"lengths": msgspec.to_builtins(profile)}
    if not isinstance(profile, Dynamic):
        return {"table": list(table)}
    applications = [
        part.time.sample(stream(seed, "emulated", name, label), SAMPLES).tolist()
        for label, part in profile.applications.items()
    ]
    drawn = {"c0": profile.c0, "c1": profile.c1, "applications": applications, "seed": seed}
    return {"dynamic": drawn}


def model_files(scenario: Scenario, kind: str) -> list[ModelFiles]:
    """Return what a worker on a GPU of this kind loads, by model in the setup's order."""

    kinds = scenario.cluster.kinds
    if kind not in kinds:
        raise InputError("kind", kind, f"a kind of GPU in the cluster: {one_of(kinds, kind)}")
    place = kinds.index(kind)
    described_models = []
    for name, model in scenario.models.items():
        times = [times[place] for times in batch_times(name, model, scenario.cluster)]
        described_models.append(files_of_model(scenario, name, [0, *times], kind))
    return described_models
