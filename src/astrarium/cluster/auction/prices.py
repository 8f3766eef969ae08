"""A price on each unit of capacity bounds what an auction can gain, and says which options are worth it.

Prices are the multipliers of the program without whole numbers, which HiGHS solves. Any prices bound what can
be gained; these bound it best. They are in whole billionths, so that losses are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from astrarium.cluster.auction.program import BILLION, BidTable, Ints
from astrarium.core.optional import from_extra
from astrarium.core.processes import Floats

PRESOLVED = 100  # rows of the capacity: a smaller program is solved sooner than it is made smaller
TIGHT = 12  # rows of the capacity that a walk goes by; what it finds is checked against all of them


class Prices(NamedTuple):
    """What a unit of each row of the capacity is worth, and the rows that are nearly used up: all that have a
    price are among them."""

    whole: Ints  # in billionths
    tight: Ints


def prices(tables: Sequence[BidTable], capacity: Ints, columns: Sequence[Ints] | None = None) -> Prices:
    """Return the prices for these bidders. With *columns*, only these rows of each table are asked: prices
    are nearly as good, and found much sooner."""
    if columns is not None:
        pairs = zip(tables, columns, strict=True)
        return prices(
            [one._replace(gain=one.gain[own], weights=one.weights[own]) for one, own in pairs], capacity
        )
    multipliers, slack = _relaxed(tables, capacity)
    whole: Ints = np.maximum(np.rint(multipliers * BILLION), 0).astype(np.int64)
    left = np.where(whole > 0, -1.0, slack / capacity)
    return Prices(whole, np.sort(np.argsort(left, kind="stable")[: max(TIGHT, int((whole > 0).sum()))]))


def _relaxed(tables: Sequence[BidTable], capacity: Ints) -> tuple[Floats, Floats]:
    """Return the multiplier and the slack of each row of the capacity, where options may be had in part."""
    with from_extra("plan"):
        import highspy
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("presolve", "on" if len(capacity) > PRESOLVED else "off")
    solver.passModel(_linear_program(highspy.HighsLp(), highspy.kHighsInf, tables, capacity))
    solver.run()
    solution = solver.getSolution()
    rows = slice(len(capacity))
    return -np.array(solution.row_dual[rows]), capacity - np.array(solution.row_value[rows])


def _linear_program(empty: Any, infinity: float, tables: Sequence[BidTable], capacity: Ints) -> Any:
    """Fill in a program of HiGHS: a column for each option, after the capacity a row for each bidder."""
    sizes = [len(table.gain) for table in tables]
    bidders = len(capacity) + np.repeat(np.arange(len(tables)), sizes)
    weights = np.concatenate([table.weights for table in tables])
    values = np.column_stack((weights, np.ones(len(weights)))).astype(float)
    places = np.column_stack((np.broadcast_to(np.arange(len(capacity)), weights.shape), bidders))
    empty.num_col_ = len(weights)
    empty.num_row_ = len(capacity) + len(tables)
    empty.col_cost_ = -np.concatenate([table.gain for table in tables]) / BILLION
    empty.col_lower_ = np.zeros(len(weights))
    empty.col_upper_ = np.full(len(weights), infinity)
    empty.row_lower_ = np.full(empty.num_row_, -infinity)
    empty.row_upper_ = np.concatenate([capacity, np.ones(len(tables))]).astype(float)
    empty.a_matrix_.start_ = np.cumsum([0, *np.count_nonzero(values, axis=1)])
    empty.a_matrix_.index_ = places[values != 0]
    empty.a_matrix_.value_ = values[values != 0]
    return empty
