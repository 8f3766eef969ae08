"""Goodput is maximized by an integer program, whatever metric says what replicas need of a GPU.

The program often has many best answers: the thesis's solver answered with any, and its large batches cost it
the deadlines. Here ties go to the smaller batch sizes (the smallest sum over the models), then to fewer
replicas. `ties: solver` leaves them to the solver, as the thesis did; another solver breaks them otherwise,
so that its answers are among the best ones, but need not be those that were printed. `ties: larger` is the
other end: the batch sizes that do the most harm. GPUs that are alike then get their replicas in the order of
the models, so that equal plans look equal.

Replicas share the SMs freely, as in the thesis: every share is 1, and the bound is on what they need.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Annotated, Any, Literal

import msgspec

from astrarium.core.optional import from_extra
from astrarium.placement.plan import Plan, Replica
from astrarium.placement.policies import Search, placement_policies
from astrarium.placement.policies import _requirements as requirements
from astrarium.placement.policies._requirements import MICRO, WHOLE, BatchOption, Metric, ModelNeeds
from astrarium.placement.problem import Problem

# The thesis's mixed-integer program: which models run with which batch sizes, and together with whom.


SLACK = 1e-6  # what the solver's tolerance may cost when ties are broken: of the value, or as such

Row = dict[int, float]  # coefficients by column
Member = tuple[int, BatchOption]  # position of a model, and how its replica runs


class Holding(msgspec.Struct, frozen=True):
    """A holding is a set of replicas together at a place: a GPU, or any of so many that are alike."""

    place: int
    members: tuple[Member, ...]
    most: int = 1


class GoodputProgram:
    """The program maximizes goodput; columns are holdings, then (model, batch size), then each goodput."""

    def __init__(self, needs: Sequence[ModelNeeds], holdings: Sequence[Holding], most_replicas: int) -> None:
        self.needs = needs
        self.holdings = holdings
        self.most_replicas = most_replicas
        self.sizes = [(model, option) for model, each in enumerate(needs) for option in each.usable]
        self.columns = len(holdings) + len(self.sizes) + len(needs)
        self.rows: list[tuple[Row, float]] = []  # each at most so much
        self._with = self._columns_with()
        self._bound_goodput()
        self._one_size_each()

    def less_goodput(self) -> Row:
        """Return the objective to minimize: the negative goodput, in requests a second."""
        return {self._given(model): -1.0 for model in range(len(self.needs))}

    def batch_sizes(self) -> Row:
        return {len(self.holdings) + at: float(option.batch) for at, (_, option) in enumerate(self.sizes)}

    def replicas(self) -> Row:
        return {column: float(len(holding.members)) for column, holding in enumerate(self.holdings)}

    def keep(self, row: Row, most: float) -> None:
        if row:
            self.rows.append((row, most))

    def solve_in_turn(
        self, objectives: Sequence[Row], limits: MilpParameters, search: Search
    ) -> list[Holding]:
        """Minimize each objective among the best answers to those before it; return the chosen holdings.

        To place nobody is an answer too, so that there is always one. A holding is there as often as it was
        chosen. *limits* are counts, not seconds, so that machines agree.
        """
        chosen: list[Holding] = []
        for objective in objectives:
            found = self._solve(objective, limits)
            if found is None:
                break
            chosen, value = found
            self.keep(objective, value + SLACK * max(1.0, abs(value)))
            if not search.tried():
                break
        return chosen

    def _solve(self, minimize: Row, limits: MilpParameters) -> tuple[list[Holding], float] | None:
        """Minimize one objective; return the holdings and its value, or None if the limits came first."""
        import numpy as np

        with from_extra("plan"):
            from scipy.optimize import milp
        goal = np.zeros(self.columns)
        goal[list(minimize)] = list(minimize.values())
        whole = np.ones(self.columns)
        whole[self._given(0) :] = 0
        answer = milp(
            goal,
            integrality=whole,
            bounds=self._bounds(),
            constraints=self._constraints(),
            options={"node_limit": limits.nodes, "mip_rel_gap": limits.gap},
        )
        return None if answer.x is None else (self._chosen(answer.x), float(answer.fun))

    def _given(self, model: int) -> int:
        return len(self.holdings) + len(self.sizes) + model

    def _columns_with(self) -> dict[tuple[int, int], list[int]]:
        """Return the columns of holdings with a replica, by model and batch size."""
        found: dict[tuple[int, int], list[int]] = defaultdict(list)
        for column, holding in enumerate(self.holdings):
            for model, option in holding.members:
                found[model, option.batch].append(column)
        return found

    def _bound_goodput(self) -> None:
        for model, each in enumerate(self.needs):
            row = {self._given(model): 1.0}
            for option in each.usable:
                row |= dict.fromkeys(self._with[model, option.batch], -option.goodput / MICRO)
            self.keep(row, 0.0)

    def _one_size_each(self) -> None:
        sizes_of: dict[int, Row] = defaultdict(dict)
        for at, (model, option) in enumerate(self.sizes, start=len(self.holdings)):
            sizes_of[model][at] = 1.0
            there = dict.fromkeys(self._with[model, option.batch], 1.0)
            most = min(self.most_replicas, self.needs[model].replicas(option))
            self.keep(there | {at: -float(most)}, 0.0)
            # No size without a replica, so that sizes can be counted.
            self.keep(dict.fromkeys(there, -1.0) | {at: 1.0}, 0.0)
        for row in sizes_of.values():
            self.keep(row, 1.0)

    def _bounds(self) -> Any:
        import numpy as np
        from scipy.optimize import Bounds

        upper = np.ones(self.columns)
        upper[: len(self.holdings)] = [holding.most for holding in self.holdings]
        upper[self._given(0) :] = [each.rate / MICRO for each in self.needs]
        return Bounds(np.zeros(self.columns), upper)

    def _constraints(self) -> Any:
        from scipy.optimize import LinearConstraint
        from scipy.sparse import coo_array

        rows = [at for at, (row, _) in enumerate(self.rows) for _ in row]
        columns = [column for row, _ in self.rows for column in row]
        values = [value for row, _ in self.rows for value in row.values()]
        matrix = coo_array((values, (rows, columns)), shape=(len(self.rows), self.columns)).tocsc()
        return LinearConstraint(matrix, ub=[most for _, most in self.rows])

    def _chosen(self, x: Any) -> list[Holding]:
        often = [round(float(value)) for value in x[: len(self.holdings)]]
        return [holding for holding, times in zip(self.holdings, often, strict=True) for _ in range(times)]


# Two ways to say what may stand on GPUs, for the same program with the same best goodput.


MIB = 2**20  # whole numbers: the solver's tolerance then admits nothing that does not fit

Contents = dict[int, list[tuple[int, int]]]  # by position of a GPU: position of a model, batch size


def by_gpu(needs: Sequence[ModelNeeds], memory: Sequence[int], most_replicas: int) -> GoodputProgram:
    holdings = [
        Holding(gpu, ((model, option),))
        for model, each in enumerate(needs)
        for option in each.usable
        for gpu in range(len(memory))
        if option.memory <= memory[gpu]
    ]
    program = GoodputProgram(needs, holdings, most_replicas)
    for gpu, room in enumerate(memory):
        _fit(program, gpu, room)
    return program


def _fit(program: GoodputProgram, gpu: int, memory: int) -> None:
    here = [(at, holding.members[0]) for at, holding in enumerate(program.holdings) if holding.place == gpu]
    program.keep({at: float(option.compute) for at, (_, option) in here}, float(WHOLE))
    program.keep({at: float(-(-option.memory // MIB)) for at, (_, option) in here}, float(memory // MIB))
    for model in range(len(program.needs)):
        program.keep({at: 1.0 for at, (other, _) in here if other == model}, 1.0)


def by_contents(
    needs: Sequence[ModelNeeds], memory: Sequence[int], most_replicas: int, most_sets: int
) -> GoodputProgram | None:
    """Return the program over sets of replicas on GPUs of equal memory; None if over *most_sets* sets."""
    holdings = [
        Holding(kind, members, memory.count(room))
        for kind, room in enumerate(kinds(memory))
        for members in islice(sets_that_fit(needs, room), most_sets + 1)
    ]
    if len(holdings) > most_sets:
        return None
    program = GoodputProgram(needs, holdings, most_replicas)
    for kind, room in enumerate(kinds(memory)):
        alike = {at: 1.0 for at, holding in enumerate(holdings) if holding.place == kind}
        program.keep(alike, float(memory.count(room)))
    return program


def kinds(memory: Sequence[int]) -> list[int]:
    return sorted(set(memory))


def sets_that_fit(needs: Sequence[ModelNeeds], memory: int) -> Iterator[tuple[Member, ...]]:
    """Yield the sets of replicas that fit on a GPU, with at most one of a model and at least one in all."""
    return islice(_sets(needs, 0, WHOLE, memory), 1, None)


def _sets(needs: Sequence[ModelNeeds], first: int, compute: int, memory: int) -> Iterator[tuple[Member, ...]]:
    yield ()
    for model in range(first, len(needs)):
        for option in needs[model].usable:
            if option.compute <= compute and option.memory <= memory:
                left = _sets(needs, model + 1, compute - option.compute, memory - option.memory)
                yield from (((model, option), *others) for others in left)


def contents_by_gpu(chosen: Sequence[Holding], memory: Sequence[int]) -> Contents:
    at_gpus: Contents = defaultdict(list)
    for holding in chosen:
        at_gpus[holding.place] += [(model, option.batch) for model, option in holding.members]
    return _in_order([(memory[gpu], sorted(there)) for gpu, there in at_gpus.items()], memory)


def contents_by_kind(chosen: Sequence[Holding], memory: Sequence[int]) -> Contents:
    room = kinds(memory)
    stands = [
        (room[holding.place], sorted((model, option.batch) for model, option in holding.members))
        for holding in chosen
    ]
    return _in_order(stands, memory)


def _in_order(stands: Sequence[tuple[int, list[tuple[int, int]]]], memory: Sequence[int]) -> Contents:
    """Sort GPUs that are alike by their contents, empty ones last, so that equal plans look equal."""
    ordered: Contents = {}
    for room in kinds(memory):
        alike = [gpu for gpu, each in enumerate(memory) if each == room]
        ordered.update(zip(alike, sorted(there for size, there in stands if size == room), strict=False))
    return ordered


class MilpParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    ties: Annotated[
        Literal["smaller", "larger", "solver"],
        msgspec.Meta(description="among equal goodputs: smaller or larger batches, or what the solver finds"),
    ] = "smaller"
    replicas: Annotated[
        int, msgspec.Meta(ge=0, description="of a model at most; 0: as many as there are GPUs")
    ] = 0
    sets: Annotated[
        int,
        msgspec.Meta(ge=0, description="of replicas on a GPU, listed at most; else a column for each GPU"),
    ] = 20_000
    nodes: Annotated[
        int, msgspec.Meta(ge=1, description="of the search tree at most, for each objective")
    ] = 2_000
    gap: Annotated[float, msgspec.Meta(ge=0, lt=1, description="from the best possible: good enough")] = 0.0


class GoodputMilp:
    """The policies by this program differ only in the metric of what a replica needs."""

    name: str
    metric: Metric
    Parameters = MilpParameters

    def __init__(self, parameters: MilpParameters) -> None:
        self.parameters = parameters

    def place(self, problem: Problem, search: Search) -> Plan:
        needs = requirements.all_needs(problem, self.metric)
        usable = [each for each in needs if each.usable]
        contents = self._contents(problem, usable, search) if usable else {}
        plan = self._plan(problem, needs, usable, contents)
        search.improved(plan)
        return plan

    def _contents(self, problem: Problem, needs: list[ModelNeeds], search: Search) -> Contents:
        memory = [gpu.memory for gpu in problem.gpus]
        most = self.parameters.replicas or len(memory)
        compact = by_contents(needs, memory, most, self.parameters.sets)
        program = compact or by_gpu(needs, memory, most)
        objectives = [program.less_goodput(), *self._tie_breakers(program)]
        chosen = program.solve_in_turn(objectives, self.parameters, search)
        located = contents_by_kind if compact else contents_by_gpu
        return located(chosen, memory)

    def _tie_breakers(self, program: GoodputProgram) -> list[Row]:
        sizes = program.batch_sizes()
        if self.parameters.ties == "solver":
            return []
        if self.parameters.ties == "larger":
            sizes = {column: -size for column, size in sizes.items()}
        return [sizes, program.replicas()]

    def _plan(
        self, problem: Problem, needs: list[ModelNeeds], usable: list[ModelNeeds], contents: Contents
    ) -> Plan:
        replicas = tuple(
            self._replica(usable[model], batch, problem.gpus[gpu].id)
            for gpu in sorted(contents)
            for model, batch in contents[gpu]
        )
        missing = {
            each.model.index: self._why(problem, each)
            for each in needs
            if all(replica.model != each.model.index for replica in replicas)
        }
        return Plan(self.name, replicas, missing, _attainment(needs, replicas))

    def _replica(self, needs: ModelNeeds, batch: int, gpu: int) -> Replica:
        option = next(option for option in needs.usable if option.batch == batch)
        serves = option.goodput / MICRO
        uses = 100 * option.compute / WHOLE
        what = requirements.METRIC_NAMES[self.metric]
        why = f"{serves:.1f} of {needs.model.rate:g} requests/s, for {uses:.1f} % {what}"
        return Replica(needs.model.index, (gpu,), batch=batch, why=why)

    def _why(self, problem: Problem, needs: ModelNeeds) -> str:
        if not needs.usable:
            return requirements.why_unusable(needs, self.metric, problem.gpus)
        if not needs.rate:
            return "a load: the program places models for the requests that they answer"
        fewest = min(needs.replicas(option) for option in needs.usable)
        return f"room for {fewest} more: the {len(problem.gpus)} GPUs serve more requests of other models"


def _attainment(needs: list[ModelNeeds], replicas: Sequence[Replica]) -> float | None:
    """Return the attainment that the program expects: without waiting and interference."""
    asked = serves = 0
    for each in needs:
        by_batch = {option.batch: option.goodput for option in each.usable}
        mine = (by_batch[replica.batch] for replica in replicas if replica.model == each.model.index)
        asked = asked + each.rate
        serves = serves + min(each.rate, sum(mine))
    return serves / asked if asked else None


@placement_policies.register("ao-milp")
class AoMilp(GoodputMilp):
    """Place for the most goodput by an exact program, by achieved occupancy."""

    name = "ao-milp"
    metric: Metric = "occupancy"


@placement_policies.register("wsm-milp")
class WsmMilp(GoodputMilp):
    """Place for the most goodput by an exact program, by weighted SM utilization."""

    name = "wsm-milp"
    metric: Metric = "sm_utilization"
