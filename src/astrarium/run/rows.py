"""Rows of a run are a table of columns, which a notebook shows and other libraries take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from astrarium.core.optional import from_extra

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]
from astrarium.run.shown import html, text

# rows of a long table that are shown
FIRST = 10
LAST = 5
LONGEST = 40  # characters of a cell


class Table(dict[str, Any]):
    """A table holds rows of a run as columns by name: NumPy arrays, which `table["latency_s"]` returns.

    `len(table)` is the number of rows. Other libraries take it as the dictionary of columns that it is:
    `pandas.DataFrame(table)`, `polars.DataFrame(table)`.
    """

    def __init__(self, columns: Mapping[str, Sequence[Any]], name: str = "rows") -> None:
        super().__init__({key: _column(values) for key, values in columns.items()})
        self.name = name

    def __len__(self) -> int:
        return max((len(values) for values in self.values()), default=0)

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the columns as lists of plain Python values."""
        return {name: values.tolist() for name, values in self.items()}

    def to_pandas(self) -> pandas.DataFrame:
        """Return a DataFrame. Needs pandas: pip install 'astrarium[pandas]'."""
        with from_extra("pandas"):
            import pandas
        return pandas.DataFrame(dict(self))

    def __str__(self) -> str:
        return text([self._shown()])

    def __repr__(self) -> str:
        return f"<{len(self):,} {self.name}: {', '.join(self)}>"

    def _repr_html_(self) -> str:
        return html([self._shown()])

    def _shown(self) -> Any:
        from astrarium.run.tables import as_it_is, plain_table

        places = _places(len(self))
        table = plain_table("", *self)
        for place in places:
            cells = ["..." if place is None else _cell(values[place]) for values in self.values()]
            table.add_row("" if place is None else f"{place:,}", *map(as_it_is, cells))
        table.caption = f"{len(self):,} {self.name}" if None in places else None
        return table


def _places(rows: int) -> list[int | None]:
    """Return which rows are shown; None stands for those in between."""
    if rows <= FIRST + LAST:
        return list(range(rows))
    return [*range(FIRST), None, *range(rows - LAST, rows)]


def _cell(value: Any) -> str:
    """Return a cell as text, cut where it is long: `table["why"]` has all of it."""
    if isinstance(value, float | np.floating):
        return f"{value:.6g}"
    return str(value) if len(str(value)) <= LONGEST else str(value)[: LONGEST - 3] + "..."


def _column(values: Sequence[Any]) -> Any:
    """Return an array; an empty cell between numbers is nan, as in pandas."""
    if isinstance(values, np.ndarray):
        return values
    known = [value for value in values if value is not None and value != ""]
    kinds = {type(value) for value in known}
    if kinds and (kinds <= {int, float} or kinds == {bool}) and len(known) == len(values):
        return np.array(known)
    if kinds and kinds <= {int, float}:
        return np.array([np.nan if value is None or value == "" else value for value in values])
    return np.array(["" if value is None else value for value in values], dtype=object)
