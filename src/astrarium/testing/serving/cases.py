"""Small worlds to put a serving policy in, and one way to run it there with everything checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TypeAlias

from msgspec.structs import replace as altered

from astrarium.core.quantities import FOREVER, MICROSECOND, Time
from astrarium.serving import contract
from astrarium.serving.contract import ModelSpec, Network, Request, Setup, Together
from astrarium.serving.state import Batch, ServingState
from astrarium.serving.world import Truth
from astrarium.testing.played import Played

GpuChange = contract.GpuJoined | contract.GpuLeft


@dataclass(frozen=True)
class Case:
    """A setup, the requests that come, and the GPUs that leave or join on the way."""

    setup: Setup
    requests: tuple[Request, ...] = ()
    gpu_events: tuple[tuple[Time, GpuChange], ...] = ()
    truth: Truth | None = None  # None: batches take exactly what the policy was told

    @property
    def exact(self) -> Truth:
        return self.truth or EstimatedTruth(self.setup)

    def events(self) -> list[tuple[Time, contract.Event]]:
        """In order of time; at one instant GPUs come before requests."""
        arrivals = [(request.arrival, contract.RequestArrived(request)) for request in self.requests]
        return sorted([*self.gpu_events, *arrivals], key=lambda pair: pair[0])

    def delayed(self, by: Time) -> Case:
        """The same case, all of it later."""
        return self._moved(lambda at: at + by)

    def stretched(self, factor: int) -> Case:
        """The same case in slow motion: every duration and instant is *factor* times as long."""
        return replace(self._moved(lambda at: at * factor), setup=_stretched_setup(self.setup, factor))

    def relabelled(self, order: Sequence[int]) -> Case:
        """The same case with model i of the new setup being model order[i] of this one."""
        place = {old: new for new, old in enumerate(order)}
        models = tuple(altered(self.setup.models[old], index=new) for new, old in enumerate(order))
        requests = tuple(altered(request, model=place[request.model]) for request in self.requests)
        return replace(self, setup=altered(self.setup, models=models), requests=requests)

    def _moved(self, instant: Callable[[Time], Time]) -> Case:
        requests = tuple(
            altered(request, arrival=instant(request.arrival), deadline=instant(request.deadline))
            for request in self.requests
        )
        gpu_events = tuple((instant(at), event) for at, event in self.gpu_events)
        return replace(self, requests=requests, gpu_events=gpu_events)


class EstimatedTruth:
    """Batches take exactly what the policy was told, by their lengths where a model has any."""

    def __init__(self, setup: Setup) -> None:
        self._models = setup.models

    def execution(self, batch: Batch) -> Time:
        return self._models[batch.model].takes(batch.requests)


Run: TypeAlias = Played[Case, ServingState]


def linear_model(
    alpha: Time, beta: Time, slo: Time, max_batch: int = 32, index: int = 0, name: str = ""
) -> ModelSpec:
    """A model whose batch of b takes alpha * b + beta."""
    table = contract.latency_table([alpha * size + beta for size in range(1, max_batch + 1)])
    return ModelSpec(index, name or f"model{index}", slo, table)


def with_lengths(model: ModelSpec, longest: Sequence[int], together: Together = "padded") -> ModelSpec:
    """The model with requests of unequal length: its table is that of the longest, and in proportion to their
    length shorter ones take less than that, down to a third of what one request takes."""
    least = model.latency[1] // 3
    tables = [
        tuple(
            time if time in (0, FOREVER) else max(least, time * length // longest[-1])
            for time in model.latency
        )
        for length in longest
    ]
    return altered(model, lengths=contract.Lengths(tuple(longest), tuple(tables), together))


def cluster(models: Iterable[ModelSpec], gpus: int, network: Network | None = None, cost: Time = 0) -> Setup:
    """A setup of the models, renumbered in the order given, on equal GPUs."""
    renumbered = tuple(altered(model, index=index) for index, model in enumerate(models))
    return Setup(renumbered, tuple(contract.GpuSpec(id_) for id_ in range(gpus)), network or Network(), cost)


def requests_at(setup: Setup, arrivals: Iterable[tuple[Time, int]]) -> tuple[Request, ...]:
    """Requests for (time, model) pairs in order of time, each due after its model's SLO."""
    numbers = count()
    return tuple(
        Request(next(numbers), model, at, at + setup.models[model].slo) for at, model in sorted(arrivals)
    )


class UnevenTruth:
    """A world that does not keep to the estimates: batch after batch takes *percents* of its table's time."""

    def __init__(self, setup: Setup, percents: Sequence[int]) -> None:
        self._table = EstimatedTruth(setup)
        self._percents = tuple(percents)

    def execution(self, batch: Batch) -> Time:
        percent = self._percents[batch.run % len(self._percents)]
        return self._table.execution(batch) * percent // 100


def with_truth(case: Case, percents: Sequence[int]) -> Case:
    """The case in a world where batches take *percents* of their estimates, in turn."""
    return replace(case, truth=UnevenTruth(case.setup, percents))


def roomy(index: int) -> ModelSpec:
    """An SLO with room for six of its largest batches."""
    alpha = (1000 + 70 * index) * MICROSECOND
    beta = (5000 - 300 * index) * MICROSECOND
    return linear_model(alpha, beta, 6 * (8 * alpha + beta), max_batch=8, index=index)


def crowd(models: int, gpus: int, requests: int) -> Case:
    """A steady stream, too much for one GPU, at instants that never tie."""
    setup = cluster([roomy(index) for index in range(models)], gpus)
    arrivals = [(1 + number * 1_234_567 + number**2 % 997, number % models) for number in range(requests)]
    return Case(setup, requests_at(setup, arrivals))


def _stretched_setup(setup: Setup, factor: int) -> Setup:
    models = tuple(
        altered(
            model,
            slo=model.slo * factor,
            latency=_stretched(model.latency, factor),
            dynamic=_stretched_dynamic(model.dynamic, factor),
            lengths=_stretched_lengths(model.lengths, factor),
        )
        for model in setup.models
    )
    network = Network(*(getattr(setup.network, field) * factor for field in Network.__struct_fields__))
    return Setup(models, setup.gpus, network, setup.preemption_cost * factor)


def _stretched(latency: Sequence[Time], factor: int) -> tuple[Time, ...]:
    return tuple(time if time >= FOREVER else time * factor for time in latency)


def _stretched_lengths(lengths: contract.Lengths | None, factor: int) -> contract.Lengths | None:
    if lengths is None:
        return None
    return altered(lengths, latency=tuple(_stretched(table, factor) for table in lengths.latency))


def _stretched_dynamic(known: contract.DynamicSpec | None, factor: int) -> contract.DynamicSpec | None:
    if known is None:
        return None
    history = tuple(tuple(time * factor for time in times) for times in known.history)
    return contract.DynamicSpec(known.c0 * factor, known.c1, history)
