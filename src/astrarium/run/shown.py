"""A result shows itself as text, and as HTML where a notebook asks."""

from __future__ import annotations

from collections.abc import Iterable
from io import StringIO
from typing import Any

WIDTH = 160  # characters: a notebook scrolls, and a file has no width of its own
_PRE = "<pre style='line-height:1.25;white-space:pre;overflow-x:auto;font-family:monospace'>{code}</pre>"


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
