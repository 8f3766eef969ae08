"""What a unit of each row of the capacity is worth: the multipliers of the program without whole numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from astrarium.cluster.auction.program import BILLION, Ints, Table
from astrarium.core.extras import from_extra


def prices(tables: Sequence[Table], room: Ints, columns: Sequence[Ints] | None = None) -> Ints:
    """Any prices bound what can be gained; these bound it best. In whole billionths, so losses are exact.

    With *columns*, only these rows of each table are asked: prices are nearly as good, and found much sooner.
    """
    if columns is not None:
        return prices([_only(table, own) for table, own in zip(tables, columns, strict=True)], room)
    with from_extra("plan"):
        from scipy.optimize import linprog
        from scipy.sparse import csr_array, vstack
    starts = np.cumsum([0] + [len(table.gain) for table in tables])
    ones = np.ones(starts[-1])
    choice = csr_array((ones, np.arange(starts[-1]), starts), shape=(len(tables), starts[-1]))
    weights = csr_array(np.concatenate([table.weights for table in tables]).T.astype(float))
    solved = linprog(
        -np.concatenate([table.gain for table in tables]) / BILLION,
        A_ub=vstack([weights, choice], format="csr"),
        b_ub=np.concatenate([room, np.ones(len(tables))]),
        method="highs-ds",
    )
    found = -np.asarray(solved.ineqlin.marginals[: len(room)]) * BILLION
    whole: Ints = np.maximum(np.rint(found), 0).astype(np.int64)
    return whole


def _only(table: Table, rows: Ints) -> Table:
    return table._replace(gain=table.gain[rows], weights=table.weights[rows])
