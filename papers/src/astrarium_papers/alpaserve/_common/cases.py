"""One case of AlpaServe's evaluation: a set of models, GPUs and Gamma traffic; a policy's plan; how it fares.

`run` is fair unless told otherwise: plans are made with some requests and judged by others. `AS_PUBLISHED`
has the authors' ways: the same requests for both, their random numbers, their clock, a forgotten backlog.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import msgspec
import numpy as np

from astrarium.core.errors import InputError
from astrarium.core.quantities import FOREVER, SECOND, Time
from astrarium.core.random_streams import stream
from astrarium.placement.groups.layout import Clocks, Group, GroupLayout, Served, SmallInts, Tables
from astrarium.placement.groups.runtime import DEFAULT, GroupRuntime
from astrarium.placement.groups.simulation import simulate_groups
from astrarium.placement.plan import Plan
from astrarium.placement.policies import Search, placement_policies
from astrarium.placement.problem import Form, PlacedModel, PlacementGpu, PlacementRequests, Problem, Shape
from astrarium_papers.alpaserve._common import workloads
from astrarium_papers.alpaserve._common.served import TRIM, Statistics, groups_of, statistics, trimmed
from astrarium_papers.alpaserve._common.timeline import Timeline, serve_timeline
from astrarium_papers.alpaserve._common.windows import Windows, replanned


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A set of models, GPUs and traffic. *slo*: times what a model takes on one GPU; None: nobody minds
    waiting. *per_node*: GPUs of a node.

    *batch_growth*: what each further request of a batch adds, in times of the first. Only batches of 1 were
    measured, so this is an assumption; 1 means that batches gain nothing.
    """

    models: tuple[str, ...]
    gpus: int
    rate: float
    cv: float = 4.0
    slo: float | None = 5.0
    seconds: float = 200.0
    split: workloads.Split = "power-law"
    memory: int = workloads.GPU_MEMORY
    per_node: int | None = None
    largest_batch: int = 1
    batch_growth: float = 1.0

    def placed(self) -> tuple[PlacedModel, ...]:
        batches = (self.largest_batch, self.batch_growth)
        return placed_models(self.models, self.rates(), self.slo, batches=batches)

    def rates(self) -> list[float]:
        return workloads.rates(self.rate, len(self.models), self.split)


class Ways(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a case is judged. *fresh*: by requests that the plan was not made with. *traffic*: from the
    authors' random numbers, or of a process that has long run. *carry_backlog*: over changes of plans."""

    fresh: bool = True
    traffic: Literal["published", "stationary"] = "stationary"
    carry_backlog: bool = True
    trim: Time = TRIM
    runtime: GroupRuntime = DEFAULT


FAIR = Ways()
AS_PUBLISHED = Ways(False, "published", False, TRIM, GroupRuntime(clock="seconds"))
SEEDS_APART = 1009  # the authors seed each model with its number: two seeds must not share one
FRESH_SEED = 1_000_003  # apart from those that plans are made with


@dataclass(frozen=True)
class Outcome:
    """A plan with how it fares; *timeline* where the policy changes its plan on the way, *plan* is the first
    then."""

    plan: Plan
    timeline: Timeline | None
    served: Served
    statistics: Statistics

    @property
    def attainment(self) -> float:
        return self.statistics.attainment


def placed_models(
    names: Sequence[str],
    rates: Sequence[float],
    slo: float | None = 5.0,
    activations: bool = False,
    batches: tuple[int, float] = (1, 1.0),
) -> tuple[PlacedModel, ...]:
    """Return the models to place. *activations*: memory for them counts too; the authors count weights only.
    *batches*: the largest, and what each further request adds."""
    pairs = zip(names, rates, strict=True)
    return tuple(
        PlacedModel(index, f"{name}-{index}", _objective(name, slo), rate, forms(name, activations, *batches))
        for index, (name, rate) in enumerate(pairs)
    )


def forms(name: str, activations: bool = False, largest: int = 1, growth: float = 1.0) -> dict[Shape, Form]:
    """Return the forms of a model, by shape."""
    factors = [1 + growth * further for further in range(largest)]
    by_shape = {}
    for shape, form in workloads.measured(name).items():
        times = tuple((0, *(round(time * factor) for factor in factors)) for _, time in form.stage_times)
        by_shape[shape] = Form(shape, times, form.weights, form.activations if activations else ())
    return by_shape


def _objective(name: str, scale: float | None) -> Time:
    if scale is None:
        return FOREVER
    if scale <= 0:
        raise InputError("slo", scale, "a factor above 0, or none")
    alone = workloads.alone(name)
    shortest = min(form.latency(1) for form in workloads.measured(name).values())
    return round(scale * (alone.latency(1) if alone else shortest))


def columns(case: Case, ways: Ways, seed: int) -> tuple[Clocks, SmallInts]:
    """Return arrivals, as the runtime's clock counts, and models."""
    if ways.traffic == "published":
        apart = seed * SEEDS_APART
        seconds, models = workloads.as_published(case.rates(), case.cv, case.seconds, apart)
        return (
            seconds if ways.runtime.clock == "seconds" else np.rint(seconds * SECOND).astype(np.int64)
        ), models
    generator = stream(seed, "alpaserve")
    times, models = workloads.windows([case.rates()], case.cv, case.seconds, generator, stationary=True)
    return (times if ways.runtime.clock == "ns" else times / SECOND), models


def problem(case: Case, ways: Ways = AS_PUBLISHED, seed: int = 0) -> Problem:
    """Return the placement problem, with the requests that a plan may be made with."""
    counted, models = columns(case, msgspec.structs.replace(ways, runtime=GroupRuntime()), seed)
    gpus = tuple(PlacementGpu(number, case.memory, _node(case, number)) for number in range(case.gpus))
    requests = PlacementRequests(tuple(counted.tolist()), tuple(models.tolist()))
    return Problem(case.placed(), gpus, requests)


def _node(case: Case, gpu: int) -> int:
    return gpu // case.per_node if case.per_node else 0


def run(
    case: Case,
    policy: str,
    parameters: dict[str, Any] | None = None,
    ways: Ways = FAIR,
    seed: int = 0,
    windows: Windows | None = None,
) -> Outcome:
    """Return the plan of a policy, given by name, judged; with *windows*, its plans follow each other."""
    factory: Any = placement_policies.get(policy)
    chosen = factory(msgspec.convert(parameters or {}, factory.Parameters))
    place = partial(chosen.place, search=Search())
    if windows is None:
        return judge(case, place(problem(case, ways, seed)), ways, seed)
    judged = problem(case, ways, seed + (FRESH_SEED if ways.fresh else 0))  # plans are made as they come
    return judge(case, replanned(place, judged, windows), ways, seed)


def judge(case: Case, plans: Plan | Timeline, ways: Ways = FAIR, seed: int = 0) -> Outcome:
    """Return how a plan fares; *seed* is that of the requests that the plan was made with."""
    tables = Tables.of(case.placed(), ways.runtime)
    arrivals, models = columns(case, ways, seed + (FRESH_SEED if ways.fresh else 0))
    trim = ways.trim / ways.runtime.unit
    workload = trimmed(arrivals, models, len(case.models), trim)
    if isinstance(plans, Timeline):
        served = serve_timeline(tables, plans, workload, ways.carry_backlog)
        return Outcome(plans.plans[0], plans, served, statistics(served, workload))
    served = simulate_groups(GroupLayout.of(tables, groups_of(plans)), workload)
    return Outcome(plans, None, served, statistics(served, workload))


def attainment_of(case: Case, groups: Sequence[Group], ways: Ways = AS_PUBLISHED, seed: int = 0) -> float:
    """Return the attainment of groups that somebody else chose: placements recorded by the authors."""
    tables = Tables.of(case.placed(), ways.runtime)
    arrivals, models = columns(case, ways, seed)
    workload = trimmed(arrivals, models, len(case.models), ways.trim / ways.runtime.unit)
    served = simulate_groups(GroupLayout.of(tables, groups), workload)
    return statistics(served, workload).attainment
