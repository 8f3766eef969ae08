"""Stages tell where the time of requests went, in a recorded run or on the path of Elvinger's thesis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from astrarium.core.errors import InputError
from astrarium.core.quantities import Time
from astrarium.placement.evaluation import Evaluation, StageLine, TimeSpread, summarized, walked
from astrarium.placement.interference import Interference, NoInterference, Tenant
from astrarium.placement.path import STAGES, Delay, Path
from astrarium.placement.plan import Plan
from astrarium.placement.problem import PlacementGpu, PlacementRequests, Problem
from astrarium.serving.ledger import Outcome
from astrarium.serving.planned.parts import RecordPart
from astrarium.serving.planned.queued import RUN_BY, Shared
from astrarium.serving.record import Ints, ServingRecord
from astrarium.serving.scenario import Scenario, build

Times = dict[str, Ints]  # by stage


def stages_of(record: ServingRecord, parts: Sequence[RecordPart] = ()) -> list[StageLine]:
    """Return the stages of answered requests; *parts* of a planned run have other stages in queues."""
    times_by_model: dict[str, list[Times]] = {}
    runs = [(part.record, part.run_by == RUN_BY) for part in parts] or [(record, False)]
    for part_record, queued in runs:
        for place, model in enumerate(part_record.setup.models):
            times_by_model.setdefault(model.name, []).append(_times(part_record, place, queued))
    lines = []
    for model in record.setup.models:
        lines += _lines(model.name, times_by_model.get(model.name, []))
    return lines


def _times(record: ServingRecord, model: int, queued: bool) -> Times:
    requests = record.requests
    batches = record.batches
    network = record.setup.network
    answered = np.isin(requests.outcome, (Outcome.IN_TIME, Outcome.LATE)) & (requests.model == model)
    counted = (requests.arrival >= record.warmup) & (requests.arrival < record.duration)
    mine = np.flatnonzero(answered & counted)
    batch = requests.batch[mine]
    sent = batches.dispatched[batch]
    began = batches.started[batch]
    came = requests.arrival[mine]
    gone = requests.done[mine] - network.response
    if queued:  # each request travels by itself, and then waits
        moved = np.full(len(mine), network.delay(1), np.int64)
        gather = np.zeros(len(mine), np.int64)
        queue = sent - came - moved
    else:  # a batch is decided on, travels, and waits for its GPU if that is not free yet
        moved = np.minimum(
            began - sent, network.control + network.data * batches.size[batch].astype(np.int64)
        )
        gather = sent - came
        queue = began - sent - moved
    reply = np.full(len(mine), network.response, np.int64)
    return {"gather": gather, "transfer": moved, "queue": queue, "execution": gone - began, "reply": reply}


def _lines(name: str, parts: Sequence[Times]) -> list[StageLine]:
    """Return the lines of a model; stages that take no time at all are left out."""
    joined = {
        stage: np.concatenate([times[stage] for times in parts]) for stage in (parts[0] if parts else ())
    }
    spreads = [(stage, TimeSpread.of(joined[stage])) for stage in STAGES if stage in joined]
    total = sum(spread.mean for _, spread in spreads if spread is not None) or 1.0
    return [
        StageLine(name, stage, spread.mean / total, spread.p50, spread.p95, spread.p99)
        for stage, spread in spreads
        if spread is not None and spread.mean > 0
    ]


def on_path(
    scenario: Scenario, plan: Plan, problem: Problem, max_wait: Time, interference: Interference | None = None
) -> Evaluation:
    """Return the stages if a router made each replica's batches and waited *max_wait* at most to fill one.

    Delays are those of the scenario's network. Only requests without a replica are dropped."""
    if scenario.dynamic:
        raise InputError("--router-wait", None, "models whose times are known: no dynamic profiles")
    network = build.setup(scenario, placed=True).network
    path = Path(max_wait, transfer=Delay(network.control, network.data), reply=Delay(network.response))
    arrivals = build.arrivals(scenario)
    requests = PlacementRequests.of(arrivals.time, arrivals.model)
    evaluation = walked(problem, plan, requests, _Turns(interference or NoInterference()), path=path)
    return summarized(problem, evaluation, scenario.workload.warmup, on_path=True)


class _Turns:
    """Replicas that each may use a whole GPU take turns on it, as if in very short slices.

    They share its time, and do not slow each other beyond that. Others do as *interference* says."""

    def __init__(self, interference: Interference) -> None:
        self._turns = Shared(NoInterference())
        self._beside = Shared(interference)

    def slowdowns(self, gpu: PlacementGpu, tenants: Sequence[Tenant]) -> tuple[float, ...]:
        whole = all(tenant.share >= 1 for tenant in tenants)
        return (self._turns if whole else self._beside).slowdowns(gpu, tenants)
