"""The program of Symphony's Appendix A for HiGHS: over all models and parts, or over a few of each.

Amounts are in shares of their means and limits, so that the solver's tolerances mean the same everywhere.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from astrarium.core.optional import from_extra
from astrarium_papers.symphony._subclusters.figures import NOWHERE, Figures, Floats, Places

SCALE = 1e3  # the solver stops at a gap of 1e-6: let that be less than anybody sees
CUTOFF_SLACK = 1e-9
OPTIMAL = 0  # as scipy calls them
INFEASIBLE = 2
PIECE = 1e-6


class Solved(NamedTuple):
    assignment: Places | None
    nodes: int
    optimal: bool
    infeasible: bool


class Program:
    """Choices x[model, part] of the *free* models among *parts*; all else stays as in *start*."""

    def __init__(self, figures: Figures, start: Places, free: Places, parts: Places) -> None:
        self.figures = figures
        self.start = start
        self.free = free
        self.parts = parts
        self._choices = len(free) * len(parts)
        self._costs = [0.0] * self._choices
        self._low = [0.0] * self._choices
        self._high = [1.0] * self._choices
        self._whole_numbers = [1] * self._choices
        self._rows: list[tuple[list[int], list[float], float, float]] = []
        self._fixed = np.ones(len(start), bool)
        self._fixed[free] = False
        for model in range(len(free)):
            self._add(self._of_model(model), [1.0] * len(parts), 1.0, 1.0)

    def balance(self) -> None:
        """The paper's objective under its limits. Parts outside are as they are: no use in being better."""
        figures = self.figures
        outside = np.setdiff1d(np.arange(figures.parts), self.parts)
        deviations = figures.deviations(self.start)
        weights = []
        most = []
        for (column, mean, weight), deviation in zip(figures.balanced, deviations, strict=True):
            most.append(self._variable(SCALE * weight, float(deviation[outside].max(initial=0.0))))
            weights.append(weight)
            self._even_out(column / mean, most[-1])
        if figures.allowed(self.start):
            self._add(most, weights, -math.inf, figures.objective(self.start) + CUTOFF_SLACK)
        self._limit_parts(None, None)
        self._limit_moves()

    def count_moves(self, cost: Floats) -> None:
        for model, place in enumerate(self.free):
            for choice, part in zip(self._of_model(model), self.parts, strict=True):
                if self.figures.today[place] not in (NOWHERE, part):
                    self._costs[choice] = float(cost[place])
        self._limit_parts(None, None)

    def stretch_limits(self) -> None:
        self._limit_parts(self._variable(1.0, 0.0), self._variable(1.0, 0.0))

    def number_parts_by_their_largest(self) -> None:
        """Parts that are alike have no order of their own: the i-th largest model goes no further than i."""
        figures = self.figures
        size = figures.load / figures.mean_load + figures.weight * figures.memory / figures.mean_memory
        for rank, model in enumerate(np.argsort(-size[self.free], kind="stable")):
            for choice in self._of_model(int(model))[rank + 1 :]:
                self._high[choice] = 0.0

    def solve(self, nodes: int) -> Solved:
        result = self._ask(np.array(self._whole_numbers), {"node_limit": nodes, "mip_rel_gap": 0.0})
        count = int(result.mip_node_count or 0)
        if result.x is None:
            return Solved(None, count, False, result.status == INFEASIBLE)
        assignment = self.start.copy()
        assignment[self.free] = self.parts[self._chosen(result).argmax(axis=1)]
        return Solved(assignment, count, result.status == OPTIMAL, False)

    def cut_up(self) -> Places:
        """Solve it with models that may be cut into pieces, and say of which a piece leaves home."""
        result = self._ask(np.zeros(len(self._costs)), {})
        if result.x is None:
            return np.zeros(0, np.int64)
        homes = self.figures.today[self.free]
        away = self._chosen(result) * (self.parts[None, :] != homes[:, None])
        return np.asarray(self.free[(homes >= 0) & (away.max(axis=1) > PIECE)], np.int64)

    def _chosen(self, result: Any) -> Floats:
        chosen: Floats = result.x[: self._choices].reshape(len(self.free), len(self.parts))
        return chosen

    def _ask(self, whole_numbers: Any, options: dict[str, Any]) -> Any:
        with from_extra("plan"):
            from scipy.optimize import Bounds, milp
        bounds = Bounds(np.array(self._low), np.array(self._high))
        return milp(np.array(self._costs), integrality=whole_numbers, bounds=bounds,
                    constraints=self._constraints(), options=options)  # fmt: skip

    def _constraints(self) -> Any:
        from scipy.optimize import LinearConstraint
        from scipy.sparse import csr_array

        starts = np.cumsum([0, *(len(columns) for columns, *_ in self._rows)])
        columns = np.concatenate([columns for columns, *_ in self._rows])
        values = np.concatenate([values for _, values, *_ in self._rows])
        matrix = csr_array((values, columns, starts), shape=(len(self._rows), len(self._costs)))
        return LinearConstraint(matrix, [row[2] for row in self._rows], [row[3] for row in self._rows])

    def _even_out(self, share: Floats, most: int) -> None:
        if not share.any():
            return
        for number, base in enumerate(self._base(share)):
            columns = self._of_part(number)
            values = share[self.free].tolist()
            self._add([*columns, most], [*values, -1.0], -math.inf, 1.0 - base)
            self._add([*columns, most], [*values, 1.0], 1.0 - base, math.inf)

    def _limit_parts(self, more_rate: int | None, more_memory: int | None) -> None:
        """Variables, where given, are by how much a limit may be exceeded."""
        figures = self.figures
        if figures.rate_limit < math.inf:
            share = figures.rate / (figures.rate_limit or 1.0)
            for number, base in enumerate(self._base(share)):
                self._limit(
                    self._of_part(number), share[self.free].tolist(), more_rate, figures.rate_limit, base
                )
        if figures.memory_limit < math.inf:
            self._limit_memory(more_memory)

    def _limit_memory(self, more_memory: int | None) -> None:
        figures = self.figures
        limit = figures.memory_limit or 1.0
        share = figures.memory / limit
        runtime = figures.runtime / limit
        present = figures.largest(runtime[self._fixed], self.start[self._fixed])
        for number, base in enumerate(self._base(share)):
            largest = self._variable(0.0, float(present[self.parts[number]]))
            columns = self._of_part(number)
            for choice, extra in zip(columns, runtime[self.free], strict=True):
                if extra > 0:
                    self._add([choice, largest], [extra, -1.0], -math.inf, 0.0)
            values = [*share[self.free].tolist(), 1.0]
            self._limit([*columns, largest], values, more_memory, figures.memory_limit, base)

    def _limit(self, columns: Any, values: Any, more: int | None, limit: float, base: float) -> None:
        allowed = (1.0 if limit else 0.0) - base
        if more is None:
            self._add(columns, values, -math.inf, allowed)
        else:
            self._add([*columns, more], [*values, -1.0], -math.inf, allowed)

    def _limit_moves(self) -> None:
        figures = self.figures
        if not figures.bounded_moves:
            return
        moved = figures.moved(self.start) & self._fixed
        for column, limit in figures.move_limits:
            if limit < math.inf:
                self._limit_moved(column, limit - math.fsum(column[moved]))

    def _limit_moved(self, column: Floats, left: float) -> None:
        unit = max(1.0, left)
        choices = []
        costs = []
        for model, place in enumerate(self.free):
            for choice, part in zip(self._of_model(model), self.parts, strict=True):
                if self.figures.today[place] not in (NOWHERE, part):
                    choices.append(choice)
                    costs.append(column[place] / unit)
        if choices:
            self._add(choices, costs, -math.inf, left / unit)

    def _base(self, column: Floats) -> list[float]:
        """Return what each of the parts holds of models that stay."""
        sums = np.bincount(self.start[self._fixed], column[self._fixed], self.figures.parts)
        return list(map(float, sums[self.parts]))

    def _of_model(self, model: int) -> range:
        return range(model * len(self.parts), (model + 1) * len(self.parts))

    def _of_part(self, number: int) -> range:
        return range(number, self._choices, len(self.parts))

    def _variable(self, cost: float, low: float) -> int:
        self._costs.append(cost)
        self._low.append(low)
        self._high.append(math.inf)
        self._whole_numbers.append(0)
        return len(self._costs) - 1

    def _add(self, columns: Any, values: Any, low: float, high: float) -> None:
        self._rows.append((list(columns), list(values), low, high))
