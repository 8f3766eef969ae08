"""AlpaServe (Li et al., OSDI 2023, section 4.2): models on groups of GPUs, found with a simulator's help.

Algorithm 2 tries ways to divide models and GPUs; Algorithm 1 chooses the models of each group. Settled by us:
- the fast form of Algorithm 1 keeps the best it has seen, not the last;
- a bucket ends where the next larger model takes more than 1.38 times as long (the authors' constant);
- all shapes are tried with the first part of the requests, and only the best few with all of them;
- a model goes on a group only if a lone request would be answered in time there.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Annotated, Literal

import msgspec
import numpy as np

from astrarium.core.units import Time
from astrarium.placement.groups import Runtime
from astrarium.placement.plan import Plan
from astrarium.placement.policies import Search, placement_policies
from astrarium.placement.policies._bucket_search import BucketSearch, Limits, Select
from astrarium.placement.policies._ground import Counting, Going, Ground, plan_of
from astrarium.placement.policies._selection import Board, Selected, board_of, fast, whole, with_idle
from astrarium.placement.problem import Problem
from astrarium.placement.simulation import Score, score
from astrarium.placement.timeline import Source, Timeline, read_window, replanned

# After the greedy choice: exchange single replicas as long as that answers more requests in time.


# Models with the most unserved requests, and replicas that may make room on a group, those that are missed
# least first: a narrow look finds most, a wide one the rest.
LOOKS = ((12, 4), (1000, 1000))

Move = tuple[int, int, int]  # a group, the model that goes (-1: none) and the model that comes


def refined(ground: Ground, start: Selected, tries: int, going: Going) -> Selected:
    """At most *tries* simulations; the first exchange that is better is taken."""
    board = board_of(ground, start.groups)
    found = score(board.layout, ground.workload)
    left = tries
    for look in LOOKS:
        while left > 0 and going.on:
            better, used = _first_better(board, found, look, left, going)
            left -= used
            if better is None:
                break
            found = better
    return board.selected(board.hosts, found.served) if found.served > start.served else start


def _first_better(
    board: Board, found: Score, look: tuple[int, int], tries: int, going: Going
) -> tuple[Score | None, int]:
    """The exchange is made on the board. With the number of simulations it took."""
    used = 0
    for move in islice(moves(board, found, *look), tries):
        used += 1
        tried = _with(board, move)
        if tried.served > found.served:
            board.exchange(*move)
            return tried, used
        if not going.tried():
            break
    return None, used


def _with(board: Board, move: Move) -> Score:
    group, gone, come = move
    kept = board.hosts[group].copy()
    board.hosts[group, come] = 1
    if gone >= 0:
        board.hosts[group, gone] = 0
    found = score(board.layout, board.ground.workload)
    board.hosts[group] = kept
    return found


def moves(board: Board, found: Score, wanted: int, given_up: int) -> Iterator[Move]:
    """The most wanted models first, on the idlest groups first, instead of who is missed least."""
    unserved = board.ground.workload.totals - found.good
    replicas = board.hosts.sum(0, dtype=np.int64)
    missed = found.good / np.maximum(replicas, 1)
    idlest = np.argsort(found.work, kind="stable").tolist()
    for come in np.argsort(-unserved, kind="stable")[:wanted].tolist():
        if unserved[come] > 0:
            for group in idlest:
                if board.possible[group, come]:
                    leaving = _who_may_go(board, group, come, missed.tolist())[:given_up]
                    yield from ((group, gone, come) for gone in leaving)


def _who_may_go(board: Board, group: int, come: int, missed: list[float]) -> list[int]:
    if board.fits[group, come]:
        return [-1]
    free = board.free[group] - board.weights[group, come]
    hosted = np.flatnonzero(board.hosts[group]).tolist()
    enough = [model for model in hosted if (free + board.weights[group, model] >= 0).all()]
    return sorted(enough, key=lambda model: (missed[model], model))


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
