"""Clockwork++: selective replication, thought over at every window, with swaps that cost nothing.

AlpaServe's stronger baseline (section 6.2): an upper bound for systems that swap models in and out. The
authors plan each window with its own requests; with *history* it is planned with those of the window
before it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

import msgspec
import numpy as np

from astrarium.core.errors import InputError
from astrarium.core.quantities import Duration, read_duration
from astrarium.core.units import Time
from astrarium.serving.placement.groups import Runtime
from astrarium.serving.placement.plan import Plan
from astrarium.serving.placement.policies._ground import Counting, Going, Ground, plan_of
from astrarium.serving.placement.policies.selective_replication import replicate
from astrarium.serving.placement.problem import Problem, Requests
from astrarium.serving.placement.registry import Search, placement_policies
from astrarium.serving.placement.timeline import Timeline


@placement_policies.register("clockwork++")
class ClockworkPlus:
    """Selective replication again at every window; swapping is free."""

    class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        window: str = "60s"
        plan_with: Literal["window", "history"] = "window"
        selection: Literal["fast", "whole"] = "fast"
        beam: Annotated[int, msgspec.Meta(ge=1)] = 1
        memory: Counting = "stage"
        runtime: Runtime = Runtime()

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        self.window: Duration = read_duration(parameters.window)
        if self.window <= 0:
            raise InputError("window", parameters.window, "longer than nothing")

    def place(self, problem: Problem, search: Search) -> Plan:
        """For all of the time at once: where it starts."""
        return self._plan(problem, Going(search))

    def timeline(self, problem: Problem, search: Search) -> Timeline:
        """A plan for each window that the requests reach into."""
        going = Going(search)
        windows = self._windows(problem.requests)
        if self.parameters.plan_with == "history":
            windows = [Requests((), ()), *windows[:-1]]
        plans: list[Plan] = []
        for requests in windows:
            known = msgspec.structs.replace(problem, requests=requests)
            plans.append(self._plan(known, going) if going.on or not plans else plans[-1])
        return Timeline(tuple(number * self.window for number in range(len(plans))), tuple(plans))

    def _windows(self, requests: Requests) -> list[Requests]:
        times, models = np.array(requests.times, np.int64), np.array(requests.models, np.int64)
        last: Time = int(times[-1]) if len(times) else 0
        edges = np.arange(0, last + self.window, self.window) if last else np.array([0])
        cuts = [*np.searchsorted(times, edges).tolist(), len(times)]
        found = [Requests(tuple(times[a:b].tolist()), tuple(models[a:b].tolist())) for a, b in pairwise(cuts)]
        return found[: int(last // self.window) + 1]

    def _plan(self, problem: Problem, going: Going) -> Plan:
        ground = Ground.of(problem, self.parameters.runtime, self.parameters.memory)
        found = replicate(ground, self.parameters.selection, self.parameters.beam, going)
        plan = plan_of("clockwork++", ground, found.groups, found.served)
        going.improved(plan)
        return plan
