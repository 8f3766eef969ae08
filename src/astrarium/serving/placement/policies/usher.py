"""Usher: groups of models, placed one after the other so that compute- and memory-heavy models share GPUs.

Shubha, Shen and Iyer, "USHER: Holistic Interference Avoidance for Resource Optimized ML Inference", OSDI
2024, as Elvinger's thesis understood it (section 5.2), with profiles in the place of its regressions. A
replica needs the achieved occupancy of its busiest moment, and the most memory it reserves. Models are
grouped (`_usher_groups`), groups placed one by one; of a group's configurations the best is taken
(`_usher_search`), each placed greedily (`_usher_board`). A model's replication factor is one to six times the
fewest GPUs that serve its load. Batch sizes whose time exceeds the SLO are out; how long requests wait is not
modelled.

On a fixed cluster goodput counts, and a model whose smallest factor exceeds the number of GPUs is not served.
On an open cluster as many GPUs as needed are taken, as few as possible; a model that would stand on GPUs
beyond those of the problem is not placed, and the plan says how many it would take.

Settled by us: what `_usher_groups` says; memory-heavy models begin the turns; a replica goes to the first GPU
with room; the larger groups come first; a replica may use the share of SMs that it needs, as in the thesis.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from astrarium.core.errors import InputError, one_of
from astrarium.serving.placement.plan import Plan, Replica
from astrarium.serving.placement.policies._requirements import (
    MICRO,
    Metric,
    Needs,
    all_needs,
    share_of,
    why_unusable,
)
from astrarium.serving.placement.policies._usher_board import Board, Choice
from astrarium.serving.placement.policies._usher_groups import Group, make_groups, surplus
from astrarium.serving.placement.policies._usher_search import (
    GroupSearch,
    Placed,
    choices,
    fewest_replicas,
)
from astrarium.serving.placement.problem import Problem
from astrarium.serving.placement.registry import Search, placement_policies


class UsherParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    cluster: Annotated[
        Literal["fixed", "open"],
        msgspec.Meta(description="fixed: the most goodput; open: all load on the fewest GPUs"),
    ] = "fixed"
    group: Annotated[int, msgspec.Meta(ge=1, description="models of a group at most")] = 4
    groups: Annotated[
        tuple[tuple[str, ...], ...],
        msgspec.Meta(description="names of models, in the order of placing; none: grouped by their needs"),
    ] = ()
    tried: Annotated[int, msgspec.Meta(ge=1, description="configurations of a group placed at most")] = (
        200_000
    )


@placement_policies.register("usher")
class Usher:
    """Place groups of models greedily, compute- and memory-heavy ones by turns, by achieved occupancy."""

    name = "usher"
    metric: Metric = "occupancy"
    Parameters = UsherParameters

    def __init__(self, parameters: UsherParameters) -> None:
        self.parameters = parameters

    def place(self, problem: Problem, search: Search) -> Plan:
        needs = all_needs(problem, self.metric)
        limit = len(problem.gpus) if self.parameters.cluster == "fixed" else None
        members = [choices(each, limit) for each in needs]
        board, placed = Board(self._memory(problem, members)), Placed()
        for group in self.groups(needs):
            wanted = [members[position] for position in group if members[position]]
            board.ours = set()
            found = GroupSearch(board, wanted, search, self.parameters.tried).run()
            board, placed = found.board, placed + found.placed
        plan = self._plan(problem, needs, placed)
        search.improved(plan, len(needs))
        return plan

    def groups(self, needs: list[Needs]) -> list[Group]:
        named = self.parameters.groups
        if not named:
            return make_groups([surplus(each) for each in needs], self.parameters.group)
        positions = {each.model.name: position for position, each in enumerate(needs)}
        given = sorted(name for group in named for name in group)
        if given != sorted(positions):
            raise InputError("groups", named, f"every model once: {one_of(sorted(positions))}", self.name)
        return [tuple(positions[name] for name in group) for group in named]

    def _memory(self, problem: Problem, members: list[list[Choice]]) -> list[int]:
        """Of each GPU; an open cluster goes on with GPUs like the largest."""
        memory = [gpu.memory for gpu in problem.gpus]
        if self.parameters.cluster == "fixed" or not memory:
            return memory
        further = sum(max((choice.replicas for choice in each), default=0) for each in members)
        return memory + [max(memory)] * further

    def _plan(self, problem: Problem, needs: list[Needs], placed: Placed) -> Plan:
        count = len(problem.gpus)
        stands = [(choice, gpus) for choice, gpus in placed if gpus and max(gpus) < count]
        replicas = [_replica(problem, choice, gpu, len(gpus)) for choice, gpus in stands for gpu in gpus]
        ordered = tuple(sorted(replicas, key=lambda replica: (replica.gpus, replica.model)))
        served = {choice.needs.model.index for choice, _ in stands}
        missing = {
            each.model.index: self._why(problem, each, placed)
            for each in needs
            if each.model.index not in served
        }
        asked = sum(each.rate for each in needs)
        serves = sum(choice.of(len(gpus)) for choice, gpus in stands)
        return Plan(self.name, ordered, missing, serves / asked if asked else None)

    def _why(self, problem: Problem, needs: Needs, placed: Placed) -> str:
        if not needs.usable:
            return why_unusable(needs, self.metric, problem.gpus)
        fewest, there = fewest_replicas(needs), len(problem.gpus)
        if self.parameters.cluster == "open":
            last = max(max(gpus, default=0) for choice, gpus in placed if choice.needs is needs)
            return f"{last + 1} GPUs in all, where {there} are there"
        if fewest > there:
            return f"{fewest} GPUs for its whole load, where {there} are there"
        return f"room for {fewest} more: models placed before it fill the {there} GPUs"


def _replica(problem: Problem, choice: Choice, gpu: int, count: int) -> Replica:
    model, option = choice.needs.model, choice.option
    serves, which = option.goodput / MICRO, f"{count} replicas" if count > 1 else "the only replica"
    why = f"{which} with batches of {option.batch}: {serves:.1f} requests/s each, {model.rate:g} asked"
    ids = (problem.gpus[gpu].id,)
    return Replica(model.index, ids, batch=option.batch, share=share_of(option), why=why)
