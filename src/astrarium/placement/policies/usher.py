"""Usher places groups of models one by one, so that compute- and memory-heavy models share GPUs.

Shubha, Shen and Iyer, "USHER: Holistic Interference Avoidance for Resource Optimized ML Inference", OSDI
2024, as Elvinger's thesis understood it (section 5.2), with profiles in the place of its regressions. A
replica needs the achieved occupancy of its busiest moment, and the most memory it reserves. Models are
grouped (`make_groups`), groups placed one by one; of a group's configurations the best is taken
(`GroupSearch`), each placed greedily (`FreeCapacity`). A model's replication factor is one to six times the
fewest GPUs that serve its load. Batch sizes whose time exceeds the SLO are out; how long requests wait is not
modelled.

On a fixed cluster goodput counts, and a model whose smallest factor exceeds the number of GPUs is not served.
On an open cluster as many GPUs as needed are taken, as few as possible; a model that would stand on GPUs
beyond those of the problem is not placed, and the plan says how many it would take.

Settled by us: how models are paired into groups; memory-heavy models begin the turns; a replica goes to the
first GPU with room; the larger groups come first; a replica may use the share of SMs that it needs, as in the
thesis.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Annotated, Literal

import msgspec

from astrarium.core.errors import InputError, one_of
from astrarium.core.optional import from_extra
from astrarium.placement.plan import Plan, Replica
from astrarium.placement.policies import Search, placement_policies
from astrarium.placement.policies import _requirements as requirements
from astrarium.placement.policies._requirements import MICRO, WHOLE, BatchOption, Metric, ModelNeeds
from astrarium.placement.problem import Problem

HEAVY = 1.2  # times the other resource


class ReplicaChoice(msgspec.Struct, frozen=True):
    """A replica choice is a model's part of a configuration: so many replicas with batches of a size."""

    needs: ModelNeeds
    option: BatchOption
    replicas: int

    @property
    def goodput(self) -> int:
        return self.of(self.replicas)

    def of(self, replicas: int) -> int:
        """Return the goodput of so many replicas; no model gives more than is asked of it."""
        return min(self.needs.rate, replicas * self.option.goodput)


class FreeCapacity:
    """Free capacity is what each GPU has left; *begun* have replicas, *ours* those of the present group."""

    def __init__(self, memory: Sequence[int]) -> None:
        self.compute = [WHOLE] * len(memory)
        self.memory = list(memory)
        self.begun = [False] * len(memory)
        self.ours: set[int] = set()

    def copy(self) -> FreeCapacity:
        twin = FreeCapacity.__new__(FreeCapacity)
        twin.compute, twin.memory = self.compute.copy(), self.memory.copy()
        twin.begun, twin.ours = self.begun.copy(), self.ours.copy()
        return twin

    def used(self) -> int:
        return sum(self.begun)

    def put(self, choice: ReplicaChoice) -> list[int]:
        """Place as many replicas as there is room for, each on another GPU; return their GPUs."""
        placed: list[int] = []
        for gpu in self._in_order():
            if len(placed) == choice.replicas:
                break
            if self._fits(choice.option, gpu):
                self._take(choice.option, gpu)
                placed.append(gpu)
        return placed

    def _in_order(self) -> Iterator[int]:
        """Return the GPUs of the same group, then those with replicas of others, then empty ones."""
        count = range(len(self.memory))
        ours = [gpu for gpu in count if gpu in self.ours]
        begun = [gpu for gpu in count if self.begun[gpu] and gpu not in self.ours]
        new = [gpu for gpu in count if not self.begun[gpu]]
        return iter(ours + begun + new)

    def _fits(self, option: BatchOption, gpu: int) -> bool:
        return option.compute <= self.compute[gpu] and option.memory <= self.memory[gpu]

    def _take(self, option: BatchOption, gpu: int) -> None:
        self.compute[gpu] -= option.compute
        self.memory[gpu] -= option.memory
        self.begun[gpu] = True
        self.ours.add(gpu)


def placing_order(choices: Sequence[ReplicaChoice]) -> list[ReplicaChoice]:
    """Sort memory- and compute-heavy models by turns, neutral ones last, the most demanding of each first."""
    ranked = sorted(choices, key=lambda choice: -(choice.option.compute + choice.option.memory_share))
    by_memory = [one for one in ranked if one.option.memory_share >= HEAVY * one.option.compute]
    by_compute = [one for one in ranked if one.option.compute >= HEAVY * one.option.memory_share]
    neutral = [choice for choice in ranked if choice not in by_memory and choice not in by_compute]
    return _by_turns(by_memory, by_compute) + neutral


def _by_turns(first: list[ReplicaChoice], second: list[ReplicaChoice]) -> list[ReplicaChoice]:
    both = min(len(first), len(second))
    turns = [choice for pair in zip(first[:both], second[:both], strict=True) for choice in pair]
    return turns + first[both:] + second[both:]


Group = tuple[int, ...]  # positions of models, rising
RESOLUTION = 10_000  # of a unit of a share, for means


def surplus(needs: ModelNeeds) -> int:
    """Return how much more compute than memory a model needs, as a mean over its options."""
    difference = sum(option.compute - option.memory_share for option in needs.profiled)
    return round(RESOLUTION * difference / max(1, len(needs.profiled)))


def make_groups(surpluses: Sequence[int], largest: int) -> list[Group]:
    """Group models whose needs of compute and of memory make up for each other.

    The larger groups come first, then in the order of the models.
    """
    groups: list[Group] = [(position,) for position in range(len(surpluses))]
    for _ in range(largest.bit_length() - 1):
        groups = _paired(groups, surpluses)
    return sorted(groups, key=lambda group: (-len(group), group))


def distance(group: Group, surpluses: Sequence[int]) -> int:
    return abs(sum(surpluses[position] for position in group))


def _paired(groups: list[Group], surpluses: Sequence[int]) -> list[Group]:
    with from_extra("plan"):
        import networkx
    graph = networkx.Graph()
    graph.add_nodes_from(range(len(groups)))
    for one, other in combinations(range(len(groups)), 2):
        graph.add_edge(one, other, weight=distance(groups[one] + groups[other], surpluses))
    pairs = sorted((min(pair), max(pair)) for pair in networkx.min_weight_matching(graph))
    alone = set(range(len(groups))) - {position for pair in pairs for position in pair}
    merged = [tuple(sorted(groups[one] + groups[other])) for one, other in pairs]
    return merged + [groups[position] for position in sorted(alone)]


Placed = list[tuple[ReplicaChoice, list[int]]]  # GPUs of the replicas
MULTIPLES = range(1, 7)  # Usher's replication factors, in times the fewest GPUs that serve the load


def fewest_replicas(needs: ModelNeeds) -> int:
    """Return how many replicas serve the load with the largest batches that keep the SLO."""
    return needs.replicas(needs.usable[-1])


def choices(needs: ModelNeeds, most: int | None) -> list[ReplicaChoice]:
    """Return a model's choices; replicas beyond those that serve the load make no further choice."""
    if not needs.usable:
        return []
    factors = [multiple * fewest_replicas(needs) for multiple in MULTIPLES]
    allowed = [factor for factor in factors if most is None or factor <= most]
    distinct = {
        (min(factor, needs.replicas(option)), option.batch): option
        for factor in allowed
        for option in needs.usable
    }
    return [ReplicaChoice(needs, option, replicas) for (replicas, _), option in sorted(distinct.items())]


class GroupSearch:
    """A group search finds the replications and batch sizes of a group that serve most.

    It tries them in order, and leaves out what cannot serve more than the best so far.
    """

    def __init__(
        self, capacity: FreeCapacity, members: Sequence[Sequence[ReplicaChoice]], search: Search, most: int
    ) -> None:
        self.start = capacity
        self.members = members
        self.search = search
        self.left = most
        best = [max(choice.goodput for choice in choices) for choices in members]
        self.rest = [sum(best[depth:]) for depth in range(len(members) + 1)]
        self.best: tuple[int, int] = (-1, 0)  # goodput, and GPUs in use, less is better
        self.capacity = capacity
        self.placed = Placed()

    def run(self) -> GroupSearch:
        self._descend([], 0)
        return self

    def _descend(self, chosen: list[ReplicaChoice], promised: int) -> None:
        depth = len(chosen)
        if self.left <= 0 or promised + self.rest[depth] < self.best[0]:
            return
        if depth == len(self.members):
            self._try(chosen)
            return
        for choice in self.members[depth]:
            self._descend([*chosen, choice], promised + choice.goodput)

    def _try(self, chosen: list[ReplicaChoice]) -> None:
        self.left = self.left - 1 if self.search.tried() else 0
        capacity = self.start.copy()
        placed = [(choice, capacity.put(choice)) for choice in placing_order(chosen)]
        serves = sum(choice.of(len(gpus)) for choice, gpus in placed)
        if (serves, -capacity.used()) > self.best:
            self.best = (serves, -capacity.used())
            self.capacity = capacity
            self.placed = placed


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
        needs = requirements.all_needs(problem, self.metric)
        limit = len(problem.gpus) if self.parameters.cluster == "fixed" else None
        members = [choices(model_needs, limit) for model_needs in needs]
        capacity = FreeCapacity(self._memory(problem, members))
        placed = Placed()
        for group in self.groups(needs):
            wanted = [members[position] for position in group if members[position]]
            capacity.ours = set()
            searched = GroupSearch(capacity, wanted, search, self.parameters.tried).run()
            capacity = searched.capacity
            placed = placed + searched.placed
        plan = self._plan(problem, needs, placed)
        search.improved(plan)
        return plan

    def groups(self, needs: list[ModelNeeds]) -> list[Group]:
        named = self.parameters.groups
        if not named:
            return make_groups([surplus(model_needs) for model_needs in needs], self.parameters.group)
        positions = {model_needs.model.name: position for position, model_needs in enumerate(needs)}
        grouped = sorted(name for group in named for name in group)
        if grouped != sorted(positions):
            raise InputError("groups", named, f"every model once: {one_of(sorted(positions))}", self.name)
        return [tuple(positions[name] for name in group) for group in named]

    def _memory(self, problem: Problem, members: list[list[ReplicaChoice]]) -> list[int]:
        """Return the memory of each GPU; an open cluster goes on with GPUs like the largest."""
        memory = [gpu.memory for gpu in problem.gpus]
        if self.parameters.cluster == "fixed" or not memory:
            return memory
        further = sum(max((choice.replicas for choice in choices), default=0) for choices in members)
        return memory + [max(memory)] * further

    def _plan(self, problem: Problem, needs: list[ModelNeeds], placed: Placed) -> Plan:
        count = len(problem.gpus)
        stands = [(choice, gpus) for choice, gpus in placed if gpus and max(gpus) < count]
        replicas = [_replica(problem, choice, gpu, len(gpus)) for choice, gpus in stands for gpu in gpus]
        ordered = tuple(sorted(replicas, key=lambda replica: (replica.gpus, replica.model)))
        served = {choice.needs.model.index for choice, _ in stands}
        missing = {
            model_needs.model.index: self._why(problem, model_needs, placed)
            for model_needs in needs
            if model_needs.model.index not in served
        }
        asked = sum(model_needs.rate for model_needs in needs)
        serves = sum(choice.of(len(gpus)) for choice, gpus in stands)
        return Plan(self.name, ordered, missing, serves / asked if asked else None)

    def _why(self, problem: Problem, needs: ModelNeeds, placed: Placed) -> str:
        if not needs.usable:
            return requirements.why_unusable(needs, self.metric, problem.gpus)
        fewest = fewest_replicas(needs)
        there = len(problem.gpus)
        if self.parameters.cluster == "open":
            last = max(max(gpus, default=0) for choice, gpus in placed if choice.needs is needs)
            return f"{last + 1} GPUs in all, where {there} are there"
        if fewest > there:
            return f"{fewest} GPUs for its whole load, where {there} are there"
        return f"room for {fewest} more: models placed before it fill the {there} GPUs"


def _replica(problem: Problem, choice: ReplicaChoice, gpu: int, count: int) -> Replica:
    model = choice.needs.model
    option = choice.option
    serves = option.goodput / MICRO
    which = f"{count} replicas" if count > 1 else "the only replica"
    why = f"{which} with batches of {option.batch}: {serves:.1f} requests/s each, {model.rate:g} asked"
    ids = (problem.gpus[gpu].id,)
    return Replica(model.index, ids, batch=option.batch, share=option.compute / WHOLE, why=why)


# Usher by the weighted achieved occupancy: the average over a batch's time, not its busiest moment.
@placement_policies.register("wao-usher")
class WaoUsher(Usher):
    """Place like Usher, by weighted achieved occupancy."""

    name = "wao-usher"
    metric: Metric = "weighted_occupancy"
