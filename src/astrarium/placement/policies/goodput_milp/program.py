"""The thesis's mixed-integer program: which models run with which batch sizes, and together with whom."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec

from astrarium.core.optional import from_extra
from astrarium.placement.policies import Search
from astrarium.placement.policies._requirements import MICRO, BatchOption, ModelNeeds

SLACK = 1e-6  # what the solver's tolerance may cost when ties are broken: of the value, or as such

Row = dict[int, float]  # coefficients by column
Member = tuple[int, BatchOption]  # position of a model, and how its replica runs


class Holding(msgspec.Struct, frozen=True):
    """A holding is a set of replicas together at a place: a GPU, or any of so many that are alike."""

    place: int
    members: tuple[Member, ...]
    most: int = 1


class SolverLimits(msgspec.Struct, frozen=True):
    """Limits are counts, not seconds, so that machines agree."""

    nodes: int
    gap: float


class GoodputProgram:
    """The program maximizes goodput; columns are holdings, then (model, batch size), then each goodput."""

    def __init__(self, needs: Sequence[ModelNeeds], holdings: Sequence[Holding], most_replicas: int) -> None:
        self.needs = needs
        self.holdings = holdings
        self.most_replicas = most_replicas
        self.sizes = [
            (model, option) for model, model_needs in enumerate(needs) for option in model_needs.usable
        ]
        self.columns = len(holdings) + len(self.sizes) + len(needs)
        self.rows: list[tuple[Row, float]] = []  # each at most so much
        self._with = self._columns_with()
        self._bound_goodput()
        self._one_size_each()

    def less_goodput(self) -> Row:
        """Return the objective to minimize: the negative goodput, in requests a second."""
        return {self._goodput_column(model): -1.0 for model in range(len(self.needs))}

    def batch_sizes(self) -> Row:
        return {len(self.holdings) + at: float(option.batch) for at, (_, option) in enumerate(self.sizes)}

    def replicas(self) -> Row:
        return {column: float(len(holding.members)) for column, holding in enumerate(self.holdings)}

    def keep(self, row: Row, most: float) -> None:
        if row:
            self.rows.append((row, most))

    def solve_in_turn(self, objectives: Sequence[Row], limits: SolverLimits, search: Search) -> list[Holding]:
        """Minimize each objective among the best answers to those before it; return the chosen holdings.

        To place nobody is an answer too, so that there is always one. A holding is there as often as it was
        chosen.
        """
        chosen: list[Holding] = []
        for objective in objectives:
            solution = self._solve(objective, limits)
            if solution is None:
                break
            chosen, value = solution
            self.keep(objective, value + SLACK * max(1.0, abs(value)))
            if not search.tried():
                break
        return chosen

    def _solve(self, minimize: Row, limits: SolverLimits) -> tuple[list[Holding], float] | None:
        """Minimize one objective; return the holdings and its value, or None if the limits came first."""
        import numpy as np

        with from_extra("plan"):
            from scipy.optimize import milp
        goal = np.zeros(self.columns)
        goal[list(minimize)] = list(minimize.values())
        whole = np.ones(self.columns)
        whole[self._goodput_column(0) :] = 0
        answer = milp(
            goal,
            integrality=whole,
            bounds=self._bounds(),
            constraints=self._constraints(),
            options={"node_limit": limits.nodes, "mip_rel_gap": limits.gap},
        )
        return None if answer.x is None else (self._chosen(answer.x), float(answer.fun))

    def _goodput_column(self, model: int) -> int:
        return len(self.holdings) + len(self.sizes) + model

    def _columns_with(self) -> dict[tuple[int, int], list[int]]:
        """Return the columns of holdings with a replica, by model and batch size."""
        columns: dict[tuple[int, int], list[int]] = defaultdict(list)
        for column, holding in enumerate(self.holdings):
            for model, option in holding.members:
                columns[model, option.batch].append(column)
        return columns

    def _bound_goodput(self) -> None:
        for model, model_needs in enumerate(self.needs):
            row = {self._goodput_column(model): 1.0}
            for option in model_needs.usable:
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
        upper[self._goodput_column(0) :] = [model_needs.rate / MICRO for model_needs in self.needs]
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
