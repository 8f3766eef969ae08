"""AlpaServe (Li et al., OSDI 2023, section 4.2): models on groups of GPUs, found with a simulator's help.

Algorithm 2 tries ways to divide models and GPUs; Algorithm 1 chooses the models of each group. Settled by us:
- the fast form of Algorithm 1 keeps the best it has seen, not the last;
- a bucket ends where the next larger model takes more than 1.38 times as long (the authors' constant);
- all shapes are tried with the first part of the requests, and only the best few with all of them;
- a model goes on a group only if a lone request would be answered in time there.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

import msgspec

from astrarium.core.units import Time
from astrarium.serving.placement.groups import Runtime
from astrarium.serving.placement.plan import Plan
from astrarium.serving.placement.policies._bucket_search import BucketSearch, Limits, Select
from astrarium.serving.placement.policies._ground import Counting, Going, Ground, plan_of
from astrarium.serving.placement.policies._refining import refined
from astrarium.serving.placement.policies._selection import Selected, fast, whole, with_idle
from astrarium.serving.placement.problem import Problem
from astrarium.serving.placement.registry import Search, placement_policies
from astrarium.serving.placement.replanning import Source, read_window, replanned
from astrarium.serving.placement.timeline import Timeline

Positive = Annotated[int, msgspec.Meta(ge=1)]


@placement_policies.register("alpaserve")
class AlpaServe:
    """Places models on groups of GPUs that share pipelines, guided by a simulator."""

    class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """*selection*: one simulation a step, or all choices (with a *beam*). *memory*: each stage counts for
        itself, or as much as the model's largest stage, as the authors count. *refine*: so many simulations
        may be spent at the end on exchanging single replicas of each of the best few (*refined*) placements;
        the paper has no such step. *window*, such as 60s: planned again so often, with the requests of the
        window before (`history`) or with its own; models move for free."""

        selection: Literal["fast", "whole"] = "fast"
        beam: Positive = 1
        buckets: bool = True
        bucket_threshold: Annotated[float, msgspec.Meta(ge=0)] = 0.38
        imbalance: Annotated[float, msgspec.Meta(ge=1)] = 2.0
        device_buckets: Positive = 100
        max_stages: Positive = 8
        max_operators: Positive = 4
        glance: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.3
        finalists: Positive = 2
        refine: Annotated[int, msgspec.Meta(ge=0)] = 300
        refined: Positive = 4
        memory: Counting = "stage"
        window: str = ""
        plan_with: Source = "history"
        runtime: Runtime = Runtime()

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters

        if parameters.window:  # only then: whoever finds a timeline lets its plans follow each other
            self.timeline = partial(self._timeline, window=read_window(parameters.window))

    def place(self, problem: Problem, search: Search) -> Plan:
        return self._place(problem, Going(search))

    def _timeline(self, problem: Problem, search: Search, window: Time) -> Timeline:
        going = Going(search)
        place = partial(self._place, going=going)
        return replanned(place, problem, window, self.parameters.plan_with, lambda: going.on)

    def _place(self, problem: Problem, going: Going) -> Plan:
        ground = Ground.of(problem, self.parameters.runtime, self.parameters.memory)

        def report(found: Selected) -> None:
            going.improved(plan_of("alpaserve", ground, found.groups, found.served))

        leaders = BucketSearch(ground, self._limits(), self._select(), going, report).run()
        best = leaders[0] if leaders else Selected((), 0)
        for leader in leaders[: self.parameters.refined]:
            better = refined(ground, leader, self.parameters.refine, going)
            if better.served > best.served:
                best = better
                report(best)
        best = with_idle(ground, best)
        return plan_of("alpaserve", ground, best.groups, best.served)

    def _select(self) -> Select:
        return fast if self.parameters.selection == "fast" else partial(whole, beam=self.parameters.beam)

    def _limits(self) -> Limits:
        chosen = self.parameters
        return Limits(
            max_stages=chosen.max_stages,
            max_operators=chosen.max_operators,
            bucket_threshold=chosen.bucket_threshold if chosen.buckets else float("inf"),
            imbalance=chosen.imbalance,
            device_buckets=chosen.device_buckets,
            glance=chosen.glance,
            finalists=chosen.finalists,
        )
