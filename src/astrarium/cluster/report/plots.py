"""Pictures of apps on a cluster, of one run or of several side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from astrarium.cluster.record import ClusterRecord
from astrarium.cluster.report.summary import DEFINITIONS
from astrarium.cluster.state import AppRow
from astrarium.core.level import Run
from astrarium.core.quantities import SECOND, Time
from astrarium.run.plots import COLORS, color_of, draw_six, margins, picture
from astrarium.run.tables import unit_of

_MOST_BARS = 20_000  # times that a GPU was held
_LONGEST_NAME = 22  # in legends


Drawn = Run[Any, ClusterRecord]


def draw_fairness(runs: Sequence[Drawn], path: Path, title: str = "") -> None:
    """How fair, how fast, how close together, how full: one line for each run."""
    panels = (*(_rho_panel(name) for name in DEFINITIONS), _completion, _scores, _utilization)
    draw_six(path, panels, runs, [run.label for run in runs], title)


def _rho_panel(name: str) -> Any:
    def draw(ax: Any, runs: Sequence[Drawn]) -> None:
        for place, run in enumerate(runs):
            _cdf(ax, [app.rho[name] for app in run.summary.by_app if name in app.rho], place)
        ax.axvline(1.0, color="#333333", lw=1, ls="--")
        ax.set(title=f"Finish-time fairness ({name})", xlabel="rho (dashed: as fast as alone)")
        ax.set(ylabel="apps (%)", ylim=(0, 102), xlim=(0, None))

    return draw


def _completion(ax: Any, runs: Sequence[Drawn]) -> None:
    unit, size = unit_of(max(run.summary.makespan_s for run in runs))
    for place, run in enumerate(runs):
        ended = [app for app in run.summary.by_app if app.rho and app.took_s is not None]
        _cdf(ax, [app.took_s / size for app in ended], place)
    ax.set(title="Completion times", xlabel=f"from arrival to end ({unit})", ylabel="apps (%)")
    ax.set(ylim=(0, 102), xlim=(0, None))


def _scores(ax: Any, runs: Sequence[Drawn]) -> None:
    """Draw the scores of runs that could have been spread, which are those on several GPUs."""
    for place, run in enumerate(runs):
        _cdf(ax, [ran.score for ran in run.record.ran if len(ran.gpus) > 1], place)
    ax.set(title="Placement scores (runs on several GPUs)", xlabel="1 / slowdown", ylabel="runs (%)")
    ax.set(ylim=(0, 102), xlim=(None, 1.01))


def _utilization(ax: Any, runs: Sequence[Drawn]) -> None:
    unit, size = unit_of(max(run.record.end for run in runs) / SECOND)
    for place, run in enumerate(runs):
        at = np.array([level.at for level in run.record.levels] + [run.record.end]) / SECOND / size
        busy = [100 * level.busy / max(1, level.gpus) for level in run.record.levels]
        ax.stairs(busy, at, color=color_of(place), lw=1.2, baseline=None)
    ax.set(title="Utilization over time", xlabel=f"time ({unit})", ylabel="GPUs at work (%)", ylim=(0, 102))
    ax.set(xlim=(0, max(_last_end(run) for run in runs) / SECOND / size))


def _last_end(run: Drawn) -> Time:
    """Leases that nobody renews end later."""
    return max((row.ended for row in run.record.rows), default=run.record.end)


def _cdf(ax: Any, values: Sequence[float], place: int) -> None:
    if values:
        shares = np.arange(1, len(values) + 1) * 100 / len(values)
        ax.step(np.sort(values), shares, where="post", color=color_of(place), lw=1.7)


def draw_holders(runs: Sequence[Drawn], path: Path) -> None:
    """A panel for each policy, a line for each GPU, a color for each app. Many panels stand side by side."""
    columns = 1 + (len(runs) > 3) + (len(runs) > 8)
    lines = -(-len(runs) // columns)
    width = 6 * max(2, columns)
    unit, size = unit_of(max(run.record.end for run in runs) / SECOND)
    panel = min(5.0, 1.0 + 0.12 * max(len(run.record.machines) for run in runs))
    apps = max((run.record.rows for run in runs), key=len)
    named = apps if len(apps) <= len(COLORS) else ()  # else several apps have the same color
    below = 0.55 - 0.2 * (-len(named) // (width // 2))
    with picture(path, width, below + (panel + 0.4) * lines, lines, columns, sharex=True) as (figure, axes):
        margins(figure, left=0.6, right=0.2, bottom=below, top=0.3, w=0.65, h=0.4)
        for run, ax in zip(runs, axes.flat, strict=False):
            _holders(ax, run, size * SECOND)
        for ax in axes.flat[len(runs) :]:
            ax.set_visible(False)
        for ax in axes.flat[max(0, len(runs) - columns) : len(runs)]:  # nothing stands below them
            ax.tick_params(labelbottom=True)
            ax.set(xlabel=f"time ({unit})", xlim=(0, max(map(_last_end, runs)) / SECOND / size))
        _names(figure, named, width // 2)


def _holders(ax: Any, run: Drawn, size: float) -> None:
    bars: dict[int, list[tuple[float, float]]] = {}
    colors: dict[int, list[str]] = {}
    for held in run.record.held[:_MOST_BARS]:
        bars.setdefault(held.gpu, []).append((held.start / size, (held.end - held.start) / size))
        colors.setdefault(held.gpu, []).append(color_of(held.app))
    for gpu, parts in bars.items():
        ax.broken_barh(parts, (gpu - 0.45, 0.9), facecolors=colors[gpu])
    first = {machine: gpu for gpu, machine in reversed(run.record.machines.items())}
    for gpu in first.values():
        ax.axhline(gpu - 0.5, color="#999999", lw=0.5)
    cut = len(run.record.held) - _MOST_BARS
    note = f" ({cut} later ones left out)" if cut > 0 else ""
    ax.set(title=f"{run.label}: who held which GPU{note}", ylabel="GPU")
    ax.set(ylim=(len(run.record.machines) - 0.4, -0.6))
    ax.yaxis.get_major_locator().set_params(integer=True)
    ax.grid(axis="y", visible=False)


def _names(figure: Any, apps: Sequence[AppRow], columns: int) -> None:
    from matplotlib.patches import Patch

    names = [row.app.name[:_LONGEST_NAME].replace("$", r"\$") for row in apps]
    patches = [Patch(color=color_of(row.app.id), label=name) for row, name in zip(apps, names, strict=True)]
    if patches:
        figure.legend(handles=patches, loc="lower center", ncols=columns)
