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

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from astrarium.placement.plan import Plan, Replica
from astrarium.placement.policies import Search, placement_policies
from astrarium.placement.policies import _requirements as requirements
from astrarium.placement.policies._requirements import MICRO, WHOLE, Metric, ModelNeeds
from astrarium.placement.policies.goodput_milp.contents import (
    Contents,
    by_contents,
    by_gpu,
    contents_by_gpu,
    contents_by_kind,
)
from astrarium.placement.policies.goodput_milp.program import GoodputProgram, Row, SolverLimits
from astrarium.placement.problem import Problem


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
        usable = [model_needs for model_needs in needs if model_needs.usable]
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
        chosen = program.solve_in_turn(
            objectives, SolverLimits(self.parameters.nodes, self.parameters.gap), search
        )
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
            model_needs.model.index: self._why(problem, model_needs)
            for model_needs in needs
            if all(replica.model != model_needs.model.index for replica in replicas)
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
    for model_needs in needs:
        by_batch = {option.batch: option.goodput for option in model_needs.usable}
        mine = (by_batch[replica.batch] for replica in replicas if replica.model == model_needs.model.index)
        asked = asked + model_needs.rate
        serves = serves + min(model_needs.rate, sum(mine))
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
