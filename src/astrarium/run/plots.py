"""Pictures in one style, for every level. matplotlib is imported when one is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6BB1", "#666666", "#A6761D",
          "#F0E442", "#882255", "#B2DF8A", "#332288", "#FB9A99", "#1B4D3E", "#999933", "#000000")  # fmt: skip
INK = "#333333"
_STYLE: Any = {
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": "#999999",
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.7,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
}


@contextmanager
def picture(
    path: Path, width: float, height: float, rows: int = 1, columns: int = 1, dpi: int = 110, **grid: Any
) -> Iterator[tuple[Any, Any]]:
    """A figure in the house style and its axes as an array (rows, columns); saved when the block ends.

    It needs no window and no pyplot, and leaves the settings of whoever imports us alone.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width, height))
        FigureCanvasAgg(figure)
        yield figure, figure.subplots(rows, columns, squeeze=False, **grid)
        figure.savefig(path, dpi=dpi, pil_kwargs={"compress_level": 1})  # small enough, and fast


def color_of(place: int) -> str:
    return COLORS[place % len(COLORS)]


def draw_six(
    path: Path, panels: Sequence[Callable[[Any, Any], None]], runs: Any, labels: Sequence[str], title: str
) -> None:
    """Draw six panels about the same runs, with a legend below where there are several."""
    from matplotlib.lines import Line2D

    several = len(labels) > 1
    with picture(path, 15, 8, 2, 3) as (figure, axes):
        margins(figure, left=0.75, right=0.2, bottom=1.0 if several else 0.6, top=0.8, w=0.95, h=0.85)
        for draw, ax in zip(panels, axes.flat, strict=True):
            draw(ax, runs)
        if several:
            lines = [Line2D([], [], color=color_of(place), lw=3) for place in range(len(labels))]
            figure.legend(lines, labels, loc="lower center", ncols=9, fontsize=10)
        shown = title.replace("$", r"\$")  # no formulas
        figure.suptitle(shown, x=0.012, y=0.985, ha="left", fontsize=12, color=INK)


def margins(figure: Any, left: float, right: float, bottom: float, top: float, w: float, h: float) -> None:
    """Inches around all axes and between neighbours: to work them out from the texts costs as much time
    as drawing does."""
    width, height = figure.get_size_inches()
    grid = figure.axes[0].get_gridspec()
    each_w = (width - left - right - w * (grid.ncols - 1)) / grid.ncols
    each_h = (height - bottom - top - h * (grid.nrows - 1)) / grid.nrows
    figure.subplots_adjust(
        left / width, bottom / height, 1 - right / width, 1 - top / height, w / each_w, h / each_h
    )
