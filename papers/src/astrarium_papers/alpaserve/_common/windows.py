"""Plans are thought over at every window: with its own requests, or with those of the window before."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Literal

import msgspec
import numpy as np

from astrarium.core.quantities import SECOND, Time
from astrarium.placement.plan import Plan
from astrarium.placement.problem import PlacementRequests, Problem
from astrarium_papers.alpaserve._common.timeline import Timeline

Source = Literal["window", "history"]


class Windows(msgspec.Struct, frozen=True):
    """A policy is asked again at every window of *length*, and knows its requests, or the history's."""

    length: Time = 60 * SECOND
    known: Source = "window"


def replanned(place: Callable[[Problem], Plan], problem: Problem, windows: Windows) -> Timeline:
    """Plan for each window that the requests reach into."""
    known = _requests_by_window(problem.requests, windows.length)
    if windows.known == "history":
        known = [PlacementRequests((), ()), *known[:-1]]
    plans = tuple(place(msgspec.structs.replace(problem, requests=requests)) for requests in known)
    return Timeline(tuple(number * windows.length for number in range(len(plans))), plans)


def _requests_by_window(requests: PlacementRequests, window: Time) -> list[PlacementRequests]:
    times = np.array(requests.times, np.int64)
    models = np.array(requests.models, np.int64)
    last: Time = int(times[-1]) if len(times) else 0
    edges = np.arange(0, last + window, window) if last else np.array([0])
    cuts = [*np.searchsorted(times, edges).tolist(), len(times)]
    by_window = [
        PlacementRequests(tuple(times[a:b].tolist()), tuple(models[a:b].tolist())) for a, b in pairwise(cuts)
    ]
    return by_window[: int(last // window) + 1]
