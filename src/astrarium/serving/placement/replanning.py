"""Plans that are thought over at every window: with its own requests, or with those of the window before."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Literal

import msgspec
import numpy as np

from astrarium.core.errors import InputError
from astrarium.core.quantities import read_duration
from astrarium.core.units import Time
from astrarium.serving.placement.plan import Plan
from astrarium.serving.placement.problem import Problem, Requests
from astrarium.serving.placement.timeline import Timeline

Source = Literal["window", "history"]


def read_window(text: str) -> Time:
    window = read_duration(text)
    if window <= 0:
        raise InputError("window", text, "longer than nothing")
    return window


def replanned(
    place: Callable[[Problem], Plan],
    problem: Problem,
    window: Time,
    plan_with: Source,
    going_on: Callable[[], bool],
) -> Timeline:
    """A plan for each window that the requests reach into. When the search is ended, the last one stays."""
    windows = _windows(problem.requests, window)
    if plan_with == "history":
        windows = [Requests((), ()), *windows[:-1]]
    plans: list[Plan] = []
    for requests in windows:
        known = msgspec.structs.replace(problem, requests=requests)
        plans.append(place(known) if going_on() or not plans else plans[-1])
    return Timeline(tuple(number * window for number in range(len(plans))), tuple(plans))


def _windows(requests: Requests, window: Time) -> list[Requests]:
    times, models = np.array(requests.times, np.int64), np.array(requests.models, np.int64)
    last: Time = int(times[-1]) if len(times) else 0
    edges = np.arange(0, last + window, window) if last else np.array([0])
    cuts = [*np.searchsorted(times, edges).tolist(), len(times)]
    found = [Requests(tuple(times[a:b].tolist()), tuple(models[a:b].tolist())) for a, b in pairwise(cuts)]
    return found[: int(last // window) + 1]
