"""Results show themselves: tables of columns, as text in a terminal and as HTML in a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from typing import TYPE_CHECKING, Any

import numpy as np

from astrarium.core.errors import from_extra

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]

WIDTH = 160  # characters: a notebook scrolls, and a file has no width of its own
FIRST, LAST = 10, 5  # rows of a long table that are shown
_PRE = "<pre style='line-height:1.25;white-space:pre;overflow-x:auto;font-family:monospace'>{code}</pre>"


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

        places, table = _places(len(self)), plain_table("", *self)
        for place in places:
            cells = ("...",) * len(self) if place is None else self._cells(place)
            table.add_row("" if place is None else f"{place:,}", *map(as_it_is, cells))
        table.caption = f"{len(self):,} {self.name}" if None in places else None
        return table

    def _cells(self, place: int) -> Iterable[str]:
        return (_told(values[place]) for values in self.values())


class Shown:
    """A shown result has tables, which it prints as text, and as HTML where a notebook asks."""

    def _tables(self) -> list[Any]:
        raise NotImplementedError

    def __str__(self) -> str:
        return text(self._tables())

    def _repr_html_(self) -> str:
        return html(self._tables())


def text(tables: Iterable[Any]) -> str:
    """Return what a terminal shows of tables and lines."""
    return str(_printed(tables).export_text()).rstrip() + "\n"


def html(tables: Iterable[Any]) -> str:
    """Return the same for a notebook."""
    return str(_printed(tables).export_html(inline_styles=True, code_format=_PRE))


def _printed(tables: Iterable[Any]) -> Any:
    from rich.console import Console

    console = Console(record=True, file=StringIO(), width=WIDTH, force_jupyter=False)
    for table in tables:
        console.print(table, soft_wrap=isinstance(table, str) or getattr(table, "no_wrap", None) is True)
    return console


def _places(rows: int) -> list[int | None]:
    """Return which rows are shown; None stands for those in between."""
    if rows <= FIRST + LAST:
        return list(range(rows))
    return [*range(FIRST), None, *range(rows - LAST, rows)]


def _told(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float | np.floating) else str(value)


def _column(values: Sequence[Any]) -> Any:
    """Return an array; an empty cell between numbers is nan, as in pandas."""
    if isinstance(values, np.ndarray):
        return values
    numbers = [value for value in values if value is not None and value != ""]
    if numbers and all(type(value) in (int, float) for value in numbers):
        gaps = len(numbers) < len(values)
        return np.array([np.nan if v is None or v == "" else v for v in values] if gaps else numbers)
    return np.array(["" if value is None else value for value in values], dtype=object)
