"""What the figures of reproductions share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SYSTEM_COLORS = {
    "Symphony": "#0072B2",
    "Clockwork": "#D55E00",
    "Nexus": "#009E73",
    "Nexus, 8 frontends": "#8FD3B6",
    "Shepherd": "#CC79A7",
    "Clipper": "#E69F00",
    "Clipper, total latency": "#F0D080",
    "Orloj": "#0072B2",
    "Orloj, earliest deadline": "#56B4E9",
    "Astrarium": "#000000",
}


def axes_row(count: int, width: float = 5.0, height: float = 3.6) -> tuple[Any, list[Any]]:
    """Return a figure with *count* axes side by side."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, count, figsize=(width * count, height), squeeze=False)
    for axis in axes[0]:
        axis.grid(alpha=0.3)
        axis.set_axisbelow(True)
    return figure, list(axes[0])


def axes_grid(count: int, columns: int, width: float = 3.2, height: float = 2.6) -> tuple[Any, list[Any]]:
    """Return a figure with *count* axes in rows of *columns* that share both axes; none is empty."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = -(-count // columns)
    size = (width * min(count, columns), height * rows)
    figure, axes = pyplot.subplots(rows, min(count, columns), figsize=size, squeeze=False, sharey=True)
    for place, axis in enumerate(axes.flat):
        axis.grid(alpha=0.3)
        axis.set_axisbelow(True)
        axis.set_visible(place < count)
    return figure, list(axes.flat)[:count]


def axes_column(count: int, width: float = 8.0, height: float = 2.2) -> tuple[Any, list[Any]]:
    """Return a figure with *count* axes below one another that share their x axis."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    size = (width, height * count)
    figure, axes = pyplot.subplots(count, 1, figsize=size, squeeze=False, sharex=True)
    for axis in axes[:, 0]:
        axis.grid(alpha=0.3)
        axis.set_axisbelow(True)
    return figure, list(axes[:, 0])


def save(figure: Any, path: Path, top: float = 1.0) -> None:
    """The axes stay below *top* (of the height), which leaves room for a legend of the whole figure."""
    from matplotlib import pyplot

    figure.tight_layout(rect=(0, 0, 1, top))
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
