"""What an autoscaler would have heard: requests, GPUs in use, advice and bad rate over time."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from astrarium.core.quantities import SECOND, Time
from astrarium.run.plots import COLORS, INK, margins, picture
from astrarium.serving import autoscale
from astrarium.serving.autoscale import AdviceOverTime
from astrarium.serving.record import ServingRecord
from astrarium.serving.report import curves
from astrarium.serving.report.plots import BOXED, Axes

_POINTS = 60


def draw_scaling(record: ServingRecord, path: Path, window: Time | None = None) -> None:
    """Draw four panels over one time axis.

    The window is a tenth of the run, at most ten seconds, unless given.
    """
    step = max(record.duration // _POINTS, 1)
    window = window or min(max(record.duration // 10, step), 10 * SECOND)
    advice = autoscale.advice_over_time(record, window, step)
    with picture(path, 9, 8.4, 4, 1, sharex=True) as (figure, axes):
        margins(figure, left=0.8, right=0.25, bottom=0.55, top=0.35, w=0, h=0.5)
        _requests(axes[0, 0], record)
        _gpus(axes[1, 0], record, advice)
        _advice(axes[2, 0], record, advice)
        _bad_rate(axes[3, 0], advice)
        axes[3, 0].set(xlabel=f"time (s); each point looks back over {window / SECOND:g} s")
        axes[3, 0].set(xlim=(0, record.duration / SECOND))


def _requests(ax: Axes, record: ServingRecord) -> None:
    offered, good = curves.rates_over_time(record)
    ax.fill_between(offered.x, offered.y, color="#dddddd", lw=0, label="offered")
    ax.plot(good.x, good.y, color=COLORS[0], lw=1.5, label="answered in time")
    ax.set(title="Requests", ylabel="requests/s", ylim=(0, None))
    ax.legend(loc="lower right", **BOXED)


def _gpus(ax: Axes, record: ServingRecord, advice: AdviceOverTime) -> None:
    count = len(record.setup.gpus)
    x = advice.time / SECOND
    ax.plot(x, advice.used, color=COLORS[3], lw=1.5, label="used at all")
    ax.plot(x, count * (1 - advice.idle_fraction), color=COLORS[0], lw=1.5, label="busy on average")
    ax.axhline(count, color=INK, lw=1, ls="--", label="in the cluster")
    ax.set(title="GPUs", ylabel="GPUs", ylim=(0, count * 1.1))
    ax.legend(loc="lower right", ncols=3, **BOXED)


def _advice(ax: Axes, record: ServingRecord, advice: AdviceOverTime) -> None:
    x = advice.time / SECOND
    width = 0.9 * record.duration / SECOND / _POINTS
    most = 2 * len(record.setup.gpus)  # where nothing is served the advice has no bound, the picture has
    ax.bar(x, np.minimum(advice.allocate, most), width, color=COLORS[1], label="add")
    ax.bar(x, -advice.release, width, color=COLORS[2], label="give back")
    ax.axhline(0, color=INK, lw=0.8)
    ax.set(title="Advice (Symphony, section 3.5)", ylabel="GPUs")
    ax.legend(loc="best", ncols=2, **BOXED)


def _bad_rate(ax: Axes, advice: AdviceOverTime) -> None:
    ax.plot(advice.time / SECOND, 100 * advice.bad_rate, color=COLORS[1], lw=1.5)
    ax.axhline(100 * autoscale.BAD_RATE_THRESHOLD, color=INK, lw=1, ls="--")
    top = max(100 * float(advice.bad_rate.max(initial=0)) * 1.1, 2.0)
    ax.set(title="Bad requests (dashed: more GPUs above this)", ylabel="bad (%)", ylim=(0, top))
