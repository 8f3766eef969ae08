"""A plan's picture has one row for each GPU, its replicas as blocks, its memory beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astrarium.core.quantities import GIB
from astrarium.run.plots import INK, color_of, margins, picture

if TYPE_CHECKING:
    from astrarium.placement.plan import Replica
    from astrarium.serving.planning.gpu_use import GpuUse, ReplicaUse


_IDLE = "#f2f2f2"
_HEIGHT = 0.72
_NARROW = 0.07  # of a row: narrower blocks have no room for a name
_MOST_ROWS = 64


def draw_placement(uses: Sequence[GpuUse], names: Sequence[str], path: Path, title: str = "") -> None:
    """Draw the GPUs of a plan, the first only if there are very many; *names* are the models' by index."""
    shown = uses[:_MOST_ROWS]
    if len(uses) > len(shown):
        title = f"{title} (the first {len(shown)} of {len(uses)} GPUs)"
    height = 1.7 + 0.42 * len(shown)
    with picture(path, 11, height, 1, 2, width_ratios=(3, 1)) as (figure, axes):
        margins(figure, left=1.1, right=0.3, bottom=1.0, top=0.7, w=0.35, h=0)
        _draw_time(axes[0, 0], shown, names)
        _draw_memory(axes[0, 1], shown)
        _legend(figure, shown, names)
        figure.suptitle(title, x=0.012, y=1 - 0.12 / height, ha="left", va="top", fontsize=11.5, color=INK)


def _draw_time(ax: Any, uses: Sequence[GpuUse], names: Sequence[str]) -> None:
    homes: dict[Replica, list[tuple[float, int]]] = {}
    for row, use in enumerate(uses):
        ax.barh(row, 1, _HEIGHT, color=_IDLE, lw=0)
        left = 0.0
        for part in use.replicas:
            width = part.replica.share if use.divided else max(part.busy, 0.004)
            _block(ax, row, left, width, part, names, use.divided)
            homes.setdefault(part.replica, []).append((left + min(0.008, width / 2), row))  # beside the name
            left += width
    for points in homes.values():
        if len(points) > 1:
            ax.plot(*zip(*points, strict=True), color=INK, lw=1.4, marker="o", ms=3.5, zorder=3)
    _rows(ax, uses)
    widest = max([1.0, *(use.busy for use in uses if not use.divided)])
    ax.axvline(1, color=INK, lw=0.8, ls="--")
    ax.set(
        title="Time, or share, of each GPU (× largest batch)",
        xlim=(0, widest * 1.02),
        xlabel="of the GPU (%)",
    )
    ticks = [0.2 * step for step in range(int(widest / 0.2) + 1)] if widest <= 2 else [0, 1, widest]
    ax.set_xticks(ticks, [f"{100 * tick:.0f}" for tick in ticks])


def _block(
    ax: Any, row: int, left: float, width: float, use: ReplicaUse, names: Sequence[str], divided: bool
) -> None:
    model = use.replica.model
    color = color_of(use.replica.model)
    filled = min(1.0, use.busy) * width if divided else width
    ax.barh(row, width, _HEIGHT, left, color=color, alpha=0.3, edgecolor="white", lw=1)
    ax.barh(row, filled, _HEIGHT, left, color=color, alpha=0.9, edgecolor="white", lw=1)
    if width >= _NARROW:
        text = _fitting(f"{names[model]} ×{use.replica.batch}", width)
        ink = INK if _bright(color) or divided else "white"
        ax.text(left + width / 2, row, text, ha="center", va="center", fontsize=7.5, color=ink, clip_on=True)


def _fitting(text: str, width: float) -> str:
    most = int(width * 95)
    return text if len(text) <= most else text[: max(1, most - 1)] + "…"


def _draw_memory(ax: Any, uses: Sequence[GpuUse]) -> None:
    for row, use in enumerate(uses):
        ax.barh(row, use.gpu.memory / GIB, _HEIGHT, color=_IDLE, lw=0)
        left = 0.0
        for part in use.replicas:
            width = part.memory / GIB
            color = color_of(part.replica.model)
            ax.barh(row, width, _HEIGHT, left, color=color, alpha=0.9, edgecolor="white", lw=1)
            left += width
    _rows(ax, uses)
    ax.set_yticks([])
    ax.set(title="Memory", xlabel="GiB", xlim=(0, max(use.gpu.memory for use in uses) / GIB * 1.02))


def _rows(ax: Any, uses: Sequence[GpuUse]) -> None:
    ax.set_yticks(range(len(uses)), [f"{use.gpu.kind} {use.gpu.id}" for use in uses])
    ax.set(ylim=(len(uses) - 0.4, -0.6))
    ax.grid(axis="y", visible=False)


def _legend(figure: Any, uses: Sequence[GpuUse], names: Sequence[str]) -> None:
    from matplotlib.patches import Patch

    placed = sorted({part.replica.model for use in uses for part in use.replicas})
    handles = [Patch(color=color_of(model), label=names[model]) for model in placed[:18]]
    if handles:
        figure.legend(handles=handles, loc="lower center", ncols=9, fontsize=8.5)


def _bright(color: str) -> bool:
    """Whether a colour is bright, by how the eye weighs red, green and blue."""
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue > 140
