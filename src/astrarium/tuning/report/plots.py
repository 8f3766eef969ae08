"""Pictures of tuning runs, of one or of several side by side: how full GPUs were, who had them, and how good
the best was when."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from astrarium.core.level import Run
from astrarium.core.quantities import SECOND, Time
from astrarium.run.plots import color_of, margins, picture
from astrarium.run.tables import unit_of
from astrarium.tuning.record import Stay, TuningRecord

_WINDOWS = 240
_MOST_BOXES = 20_000
_NAMED = 0.02  # of the width: a box so wide has room for a number


Drawn = Run[Any, TuningRecord]


class Box(NamedTuple):
    """A trial's part of one GPU: *low* to *high* of it, from *start* to *end*."""

    candidate: int
    gpu: int
    low: float
    high: float
    start: Time
    end: Time

    @property
    def height(self) -> float:
        return self.high - self.low


def draw_heat(runs: Sequence[Drawn], path: Path) -> None:
    """Draw a panel for each run, with a row for each GPU; dark is full."""
    unit, size, end = _time(runs)
    with picture(path, 12, _height(runs), len(runs), 1, sharex=True) as (figure, axes):
        margins(figure, left=0.7, right=1.1, bottom=0.5, top=0.35, w=0, h=0.4)
        for run, ax in zip(runs, axes.flat, strict=True):
            rows = list(run.record.windows(_WINDOWS, end).values()) or [[0.0] * _WINDOWS]
            extent = (0, end / SECOND / size, len(rows) - 0.5, -0.5)
            image = ax.imshow(rows, aspect="auto", extent=extent, cmap="YlGnBu", vmin=0, vmax=1)
            title = f"{run.label}: how much of each GPU was held ({run.record.utilization():.0%} in all)"
            _gpu_axis(ax, title)
        bar = figure.add_axes((1 - 0.8 / 12, 0.2, 0.15 / 12, 0.6))
        figure.colorbar(image, cax=bar).set_label("part that was held")
        axes.flat[-1].set(xlabel=f"time ({unit})")


def draw_best(runs: Sequence[Drawn], path: Path, title: str = "") -> None:
    """Draw how good the best was when; dashed: the target."""
    unit, size, end = _time(runs)
    with picture(path, 8, 4.5) as (figure, axes):
        margins(figure, left=0.8, right=0.2, bottom=0.55, top=0.45, w=0, h=0)
        ax = axes[0, 0]
        for place, run in enumerate(runs):
            at = [best.at / SECOND / size for best in run.record.best]
            values = [best.value for best in run.record.best]
            color = color_of(place)
            last = run.record.end / SECOND / size
            if at:
                ax.step([*at, last], [*values, values[-1]], where="post", color=color, label=run.label)
        if (target := runs[0].summary.target) is not None:
            ax.axhline(target, color="#333333", lw=1, ls="--")
        ax.set(title=title.replace("$", r"\$") or "The best so far", xlabel=f"time ({unit})")
        ax.set(ylabel=f"best value ({runs[0].summary.goal})", xlim=(0, end / SECOND / size))
        if ax.get_legend_handles_labels()[0]:
            ax.legend()


def draw_trials(runs: Sequence[Drawn], path: Path) -> None:
    """Draw a panel for each run, with a row for each GPU and a box for each stay: as high as its share of the
    GPU, on as many rows as it has GPUs, in its candidate's color."""
    unit, size, end = _time(runs)
    with picture(path, 12, _height(runs, 0.3), len(runs), 1, sharex=True) as (figure, axes):
        margins(figure, left=0.7, right=0.2, bottom=0.5, top=0.35, w=0, h=0.4)
        for run, ax in zip(runs, axes.flat, strict=True):
            _boxes(ax, boxes(run.record), size * SECOND, end)
            _gpu_axis(
                ax, f"{run.label}: which candidate trained where; a box on several lines: on several GPUs"
            )
            ax.set(ylim=(max(1, len(run.record.gpus)) - 0.5, -0.5))
        axes.flat[-1].set(xlabel=f"time ({unit})", xlim=(0, end / SECOND / size))


def _boxes(ax: Any, boxes: Sequence[Box], size: float, end: Time) -> None:
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    shown = boxes[:_MOST_BOXES]
    boxes_ = [
        Rectangle((box.start / size, box.gpu - 0.5 + box.low), (box.end - box.start) / size, box.height)
        for box in shown
    ]
    colors = [color_of(box.candidate) for box in shown]
    ax.add_collection(PatchCollection(boxes_, facecolors=colors, edgecolors="white", linewidths=0.4))
    for box in shown:
        if box.end - box.start >= _NAMED * end and box.height >= 0.25:
            middle = (box.start + box.end) / 2 / size, box.gpu - 0.5 + (box.low + box.high) / 2
            ax.text(*middle, str(box.candidate), ha="center", va="center", fontsize=6.5, color="white")


def boxes(record: TuningRecord) -> list[Box]:
    """Stack trials on shares of a GPU one above the other: each where it was free when it came."""
    owner = {row.trial.id: row.trial.candidate for row in record.rows}
    drawn: list[Box] = []
    on: dict[int, list[Box]] = {}
    for stay in sorted(record.stays, key=lambda stay: (stay.start, stay.end, stay.trial)):
        for gpu in stay.place.gpus:
            there = on[gpu] = [box for box in on.get(gpu, []) if box.end > stay.start]
            low = _free(stay, there)
            box = Box(owner[stay.trial], gpu, low, low + float(stay.place.share), stay.start, stay.end)
            there.append(box)
            drawn.append(box)
    return drawn


def _free(stay: Stay, there: Sequence[Box]) -> float:
    """Return the lowest part of its size that nobody has; the lowest of all where shares of other sizes are
    in the way, as they are for a moment while trials move."""
    share = float(stay.place.share)
    for part in range(stay.place.parts):
        low = part * share
        high = (part + 1) * share
        if all(box.high <= low + 1e-9 or box.low >= high - 1e-9 for box in there):
            return low
    return 0.0


def _gpu_axis(ax: Any, title: str) -> None:
    ax.set(ylabel="GPU", title=title.replace("$", r"\$"))
    ax.yaxis.get_major_locator().set_params(integer=True)
    ax.grid(visible=False)


def _height(runs: Sequence[Drawn], line: float = 0.2) -> float:
    gpus = max(len(run.record.gpus) for run in runs)
    return 0.9 + (min(8.0, 1.0 + line * gpus) + 0.4) * len(runs)


def _time(runs: Sequence[Drawn]) -> tuple[str, float, Time]:
    """Give all panels one time axis."""
    end = max(1, *(run.record.end for run in runs))
    unit, size = unit_of(end / SECOND)
    return unit, size, end
