"""From a scenario to what runs: the setup that policies see, the arrivals, the truth, the policy."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from astrarium.core.choice import Choice, chosen
from astrarium.core.distributions import Distribution
from astrarium.core.errors import InputError, one_of
from astrarium.core.profiles import ByLength, Dynamic, Kinds, Profile
from astrarium.core.quantities import Bytes, Time, write_bytes, write_duration
from astrarium.core.random_streams import stream
from astrarium.serving.contract import DynamicSpec, GpuSpec, Lengths, ModelSpec, Network, Setup, latency_table
from astrarium.serving.policies import ServingPolicy, listens_to_profiler, serving_policies
from astrarium.serving.policies.alike import AlikePolicy, Division
from astrarium.serving.scenario.cluster import Cluster
from astrarium.serving.scenario.schema import Model, Scenario
from astrarium.serving.world import LengthTruth, Profiler, TableTruth, Truth

if TYPE_CHECKING:
    from astrarium.core.arrivals import Arrivals, Ints
from astrarium.serving.world import DynamicTruth


def setup(scenario: Scenario, placed: bool = False) -> Setup:
    """Return what policies are told: of unequal GPUs the slowest kind in the cluster, size by size.

    Models that are *placed*, by a plan, do not all live on every GPU, and need not fit there together.
    """
    if not placed:
        _check_memory(scenario)
    models = []
    for index, (name, model) in enumerate(scenario.models.items()):
        slowest = [max(times) for times in batch_times(name, model, scenario.cluster)]
        _check_priorities(name, model, slowest[0])
        known = _dynamic(scenario, name, model)
        lengths = _lengths(model, scenario.cluster)
        models.append(ModelSpec(index, name, model.slo, latency_table(slowest), known, lengths))
    delays = scenario.network
    return Setup(
        models=tuple(models),
        gpus=_gpus(scenario.cluster),
        network=Network(delays.control, delays.data, delays.response),
        preemption_cost=scenario.preemption.cost,
    )


def _dynamic(scenario: Scenario, name: str, model: Model) -> DynamicSpec | None:
    profile = model.profile
    if not isinstance(profile, Dynamic):
        return None
    history = (
        _history(part.time, scenario.profiling.history, scenario.seed, name, label)
        for label, part in profile.applications.items()
    )
    return DynamicSpec(profile.c0, profile.c1, tuple(history))


def _lengths(model: Model, cluster: Cluster) -> Lengths | None:
    """Return what is told of a model's lengths: the slowest kind of GPU, as far as it keeps the SLO."""
    by_kind = [profile.buckets() for profile in profiles_by_length(model.profile, cluster.kinds)]
    if not by_kind:
        return None
    profile = profiles_by_length(model.profile, cluster.kinds)[0]
    tables = []
    for length in by_kind[0]:
        slowest = map(max, zip(*(times[length] for times in by_kind), strict=False))
        fitting = takewhile(lambda time: time <= model.slo, islice(slowest, model.max_batch))
        tables.append(latency_table(list(fitting)))
    return Lengths(tuple(by_kind[0]), tuple(tables), profile.together)


def profiles_by_length(profile: Profile, kinds: Sequence[str]) -> list[ByLength]:
    """Return a model's profile on each kind of GPU, where it is one by length; else none."""
    on_kinds = [profile.on(kind) for kind in kinds]
    return [one for one in on_kinds if isinstance(one, ByLength)]


def _history(time: Distribution, count: int, seed: int, name: str, label: str) -> tuple[Time, ...]:
    """Return the times measured before the run: the same distribution as the run's own, other draws."""
    if not count:
        return ()
    return tuple(sorted(time.sample(stream(seed, "history", name, label), count).tolist()))


def truth_tables(scenario: Scenario, setup: Setup) -> tuple[list[int], list[list[tuple[Time, ...]]]]:
    """Return (kind of each GPU, tables[kind][model]): what batches really take.

    The tables are as long as the model's estimates. Dynamic models have no such table: these are the
    estimates.
    """
    kinds = scenario.cluster.kinds
    tables: list[list[tuple[Time, ...]]] = [[] for _ in kinds]
    for name, model in scenario.models.items():
        by_size = batch_times(name, model, scenario.cluster)
        for kind in range(len(kinds)):
            tables[kind].append(latency_table([times[kind] for times in by_size]))
    return [kinds.index(gpu.kind) for gpu in setup.gpus], tables


def truth(scenario: Scenario, setup: Setup, arrivals: Arrivals) -> Truth:
    tables: Truth = TableTruth(*truth_tables(scenario, setup))
    if by_length := _truth_by_length(scenario, setup):
        tables = LengthTruth(by_length, tables)
    if not scenario.dynamic:
        return tables

    models = enumerate(scenario.models.values())
    profiles = {index: model.profile for index, model in models if isinstance(model.profile, Dynamic)}
    return DynamicTruth(arrivals.work.tolist(), profiles, tables)


def _truth_by_length(scenario: Scenario, setup: Setup) -> dict[int, list[ByLength]]:
    """Return the profiles of the models that have lengths, by GPU."""
    kinds = [gpu.kind for gpu in setup.gpus]
    known = {
        index: profiles_by_length(model.profile, kinds)
        for index, model in enumerate(scenario.models.values())
    }
    return {index: profiles for index, profiles in known.items() if profiles}


def profiler(scenario: Scenario, arrivals: Arrivals, policy: ServingPolicy) -> Profiler | None:
    """Return the profiler; None where there is nothing to measure, or nobody who would listen."""
    if not (scenario.dynamic and listens_to_profiler(policy)):
        return None
    return Profiler(arrivals.profiled.tolist(), arrivals.work.tolist(), scenario.profiling.delay)


def arrivals(scenario: Scenario) -> Arrivals:
    """Return the arrivals of a run; models are numbered in the scenario's order, as in the setup."""
    from astrarium.serving.scenario.arrivals import arrivals as made

    return made(scenario)


def arrivals_at(scenario: Scenario, time: Ints, model: Ints) -> Arrivals:
    """Return arrivals at these instants, in order of time, for these models; all else is as in `arrivals`."""
    from astrarium.serving.scenario.arrivals import arrivals_at as made

    return made(scenario, time, model)


def deadlines(arrivals: Arrivals, setup: Setup) -> Ints:
    import numpy as np

    slo = np.array([model.slo for model in setup.models], np.int64)
    return arrivals.time + slo[arrivals.model]


def buckets(arrivals: Arrivals, setup: Setup) -> Ints:
    """Return the bucket that the length of each request falls in; 0 where its model has none."""
    import numpy as np

    found = np.zeros(len(arrivals), np.int32)
    for model in setup.models:
        if model.lengths is not None:
            mine = arrivals.model == model.index
            found[mine] = np.searchsorted(model.lengths.longest, arrivals.length[mine])
    return found


def policy(scenario: Scenario, setup: Setup) -> ServingPolicy:
    return made_policy(scenario.policy, setup)


def made_policy(choice: Choice, setup: Setup) -> ServingPolicy:
    """Make a policy; one that is to batch like lengths stands behind a division of the models by length."""
    fresh: ServingPolicy = chosen(serving_policies, choice, setup)
    if choice.parameters.get("batches") != "alike" or not any(model.lengths for model in setup.models):
        return fresh
    division = Division(setup, choice.parameters.get("buckets"))
    return AlikePolicy(chosen(serving_policies, choice, division.setup), division)


def _gpus(cluster: Cluster) -> tuple[GpuSpec, ...]:
    gpus: list[GpuSpec] = []
    node = 0
    for group in cluster.groups:
        for place in range(group.count):
            home = node + place * group.nodes // group.count
            gpus.append(GpuSpec(len(gpus), group.kind, group.memory, home))
        node += group.nodes
    return tuple(gpus)


def batch_times(name: str, model: Model, cluster: Cluster) -> list[tuple[Time, ...]]:
    """Return, for batches of 1, 2, ...: the time on each kind of GPU, as far as the slowest keeps the SLO."""
    if isinstance(model.profile, Kinds):
        _check_kinds(name, model.profile, cluster)
    streams = [model.profile.on(kind).batch_times() for kind in cluster.kinds]
    fitting: list[tuple[Time, ...]] = []
    for times in islice(zip(*streams, strict=False), model.max_batch):
        if max(times) > model.slo:
            if not fitting:
                _refuse_slo(name, model, cluster.kinds, times)
            break
        fitting.append(times)
    return fitting


def _refuse_slo(name: str, model: Model, kinds: Sequence[str], times: Sequence[Time]) -> None:
    slowest = kinds[times.index(max(times))]
    expected = f"at least {write_duration(max(times))}, what one request takes on a GPU of kind {slowest}"
    raise InputError(f"models.{name}.slo", write_duration(model.slo), expected)


def _check_priorities(name: str, model: Model, alone: Time) -> None:
    for priority, objective in model.priorities.items():
        if objective < alone:
            expected = f"at least {write_duration(alone)}, what one request takes"
            raise InputError(f"models.{name}.priorities.{priority}", write_duration(objective), expected)


def _check_kinds(name: str, profile: Kinds, cluster: Cluster) -> None:
    for kind in cluster.kinds:
        if kind not in profile.kinds:
            expected = f"a profile for every kind of GPU in the cluster: {one_of(cluster.kinds)}"
            raise InputError(f"models.{name}.profile.kinds.{kind}", None, expected)


def _check_memory(scenario: Scenario) -> None:
    """Check that all models fit together on the smallest GPU: every model lives on every GPU."""
    sized = [group for group in scenario.cluster.groups if group.memory]
    smallest = min(sized, key=lambda group: group.memory, default=None)
    if smallest is None:
        return
    together = 0
    for name, model in scenario.models.items():
        together += model.memory
        if together > smallest.memory:
            left = write_bytes(Bytes(smallest.memory - together + model.memory))
            expected = (
                f"at most {left}, what the models before it leave of the {write_bytes(smallest.memory)} of a "
                f"GPU of kind {smallest.kind}: every model lives on every GPU, unless a plan says where "
                "(`astrarium plan` makes one for `simulate --plan`)"
            )
            raise InputError(f"models.{name}.memory", write_bytes(model.memory), expected)
