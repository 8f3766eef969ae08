"""What a plan is worth: requests on their way through queues and replicas that share GPUs, event by event.

A request goes to a replica of its model and waits there until it can be part of a batch (`worker_queues`);
or, where a `path` is given, to a router that makes the batches, and over a network (`path`). Replicas run
their batches stage by stage, and slow each other where they share a GPU (`servers`, `interference`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from astrarium.core.errors import InputError
from astrarium.core.units import SECOND, Time
from astrarium.serving.placement.evaluation import Evaluation, summarized
from astrarium.serving.placement.interference import Interference, NoInterference
from astrarium.serving.placement.journeys import Journeys
from astrarium.serving.placement.path import Path
from astrarium.serving.placement.plan import Plan, check
from astrarium.serving.placement.problem import Problem, Requests
from astrarium.serving.placement.worker_queues import Batching, House

__all__ = ["Batching", "evaluate", "poisson", "walked"]


def poisson(problem: Problem, duration: Time, draw: Callable[[], float]) -> Requests:
    """Requests at the models' rates. Chance is handed in: *draw* gives uniform numbers in [0, 1)."""
    found: list[tuple[Time, int]] = []
    for model in problem.models:
        at = 0.0
        while model.rate > 0:
            at -= math.log1p(-draw()) * SECOND / model.rate
            if at >= duration:
                break
            found.append((round(at), model.index))
    found.sort()
    return Requests(tuple(at for at, _ in found), tuple(model for _, model in found))


def evaluate(
    problem: Problem,
    plan: Plan,
    requests: Requests,
    interference: Interference | None = None,
    batching: Batching | None = None,
    warmup: Time = 0,
    path: Path | None = None,
) -> Evaluation:
    """Requests that arrive before *warmup* load the GPUs and are not counted."""
    found = walked(problem, plan, requests, interference, batching, path)
    return summarized(problem, found, warmup, on_path=path is not None)


def walked(
    problem: Problem,
    plan: Plan,
    requests: Requests,
    interference: Interference | None = None,
    batching: Batching | None = None,
    path: Path | None = None,
) -> Journeys:
    """The way of every request, for those who want more than the summary."""
    check(plan, problem)
    if np.any(np.diff(np.array(requests.times, dtype=np.int64)) < 0):
        raise InputError("requests", None, "instants in rising order")
    house = House(problem, plan, interference or NoInterference(), batching or Batching())
    return house.run(requests, path)
