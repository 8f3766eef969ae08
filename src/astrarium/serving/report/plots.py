"""Pictures of one run, or of several on one set of axes. matplotlib is imported when one is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from astrarium.run.plots import INK, color_of, draw_six
from astrarium.serving.record import ServingRecord
from astrarium.serving.report import curves
from astrarium.serving.report.summary import Summary, busy_time

_LOSS_COLORS = ("#D55E00", "#E69F00", "#56B4E9", "#CC79A7", "#009E73", "#8C6BB1", "#666666")
_NAMED_MODELS = 8  # with more than that, models are shown by rank

BOXED: Any = {"frameon": True, "facecolor": "white", "edgecolor": "none", "framealpha": 0.9}

Axes: TypeAlias = Any  # matplotlib is not imported here, and its own types say little


@dataclass(frozen=True)
class DrawnRun:
    label: str
    record: ServingRecord
    summary: Summary


Runs = Sequence[DrawnRun]


def draw_overview(runs: Runs, path: Path, title: str = "") -> None:
    """Draw six questions about the same runs: how fast, in what batches, how steadily, on how many GPUs, what
    was lost, and by which model."""
    last = _attainment if len(runs[0].summary.models) > 1 else _attainment_over_time
    panels = (_latency, _batch_sizes, _over_time, _gpu_load, _losses, last)
    draw_six(path, panels, runs, [run.label for run in runs], title)


def _latency(ax: Axes, runs: Runs) -> None:
    slos = {model.slo for model in runs[0].record.setup.models}
    relative = len(slos) > 1
    limit = 100.0 if relative else next(iter(slos)) / 1e6
    right = limit * 1.1
    for i, run in enumerate(runs):
        record = run.record
        curve = curves.latency_cdf(record, relative)
        right = min(max(right, float(curve.x[-1]) * 1.02), limit * 2)
        x = np.append(curve.x, limit * 100)
        y = np.append(curve.y, curve.y[-1])
        ax.plot(x, y, color=color_of(i), lw=1.8)
    ax.axvline(limit, color=INK, lw=1, ls="--")
    ax.annotate("SLO", (limit, 3), xytext=(3, 0), textcoords="offset points", color=INK, fontsize=8.5)
    ax.set(title="Latency", xlim=(0, right), ylim=(0, 102))
    ax.set(xlabel="latency (% of the model's SLO)" if relative else "latency (ms)")
    ax.set(ylabel="requests answered within (%)")


def _batch_sizes(ax: Axes, runs: Runs) -> None:
    largest = 1
    for i, run in enumerate(runs):
        record = run.record
        curve = curves.batch_size_shares(record)
        x = curve.x[1:]
        y = curve.y[1:]
        seen = np.flatnonzero(y > 0.05)
        largest = max(largest, int(seen[-1]) + 1 if len(seen) else 1)
        if len(runs) == 1:
            ax.bar(x, y, width=0.85, color=color_of(i))
        else:
            edges = np.append(x, x[-1] + 1) - 0.5
            ax.stairs(y, edges, color=color_of(i), lw=1.6)
            ax.stairs(y, edges, color=color_of(i), fill=True, alpha=0.12)
    ax.set(title="Batch sizes", xlabel="requests in a batch", ylabel="batches (%)")
    ax.set(xlim=(0.4, largest + 0.6))
    ax.xaxis.get_major_locator().set_params(integer=True)


def _over_time(ax: Axes, runs: Runs) -> None:
    for i, run in enumerate(runs):
        record = run.record
        offered, good = curves.rates_over_time(record)
        if i == 0:
            ax.fill_between(offered.x, offered.y, color="#dddddd", lw=0, label="offered")
        ax.plot(
            good.x, good.y, color=color_of(i), lw=1.5, label="answered in time" if len(runs) == 1 else None
        )
    record = runs[0].record
    if record.warmup:
        ax.axvline(record.warmup / 1e9, color=INK, lw=1, ls=":", label="end of the warm-up")
    ax.set(title="Goodput over time", xlabel="time (s)", ylabel="requests/s")
    ax.set(xlim=(0, record.duration / 1e9), ylim=(0, max(ax.get_ylim()[1] * 1.02, 1)))
    ax.legend(loc="lower right", **BOXED)


def _gpu_load(ax: Axes, runs: Runs) -> None:
    for i, run in enumerate(runs):
        record = run.record
        busy, wasted = busy_time(record)
        scale = 100 / max(record.duration - record.warmup, 1)
        ids = np.arange(len(busy))
        if len(runs) == 1:
            ax.bar(ids, busy * scale, width=0.85, color=color_of(i), label="busy")
            if wasted.any():
                ax.bar(ids, wasted * scale, width=0.85, color="#D55E00", label="of it wasted by preemption")
                ax.legend(loc="upper right")
        else:
            ax.stairs(busy * scale, np.arange(len(busy) + 1) - 0.5, color=color_of(i), lw=1.8, baseline=None)
    ax.set(title="Load by GPU", xlabel="GPU id", ylabel="busy (% of the measured time)", ylim=(0, 102))
    ax.set(xlim=(-0.6, len(runs[0].record.setup.gpus) - 0.4))
    ax.xaxis.get_major_locator().set_params(integer=True)


def _losses(ax: Axes, runs: Runs) -> None:
    losses = [curves.losses(run.record) for run in runs]
    reasons = sorted({reason for shares in losses for reason in shares}, key=_loss_order)
    rows = np.arange(len(runs))
    left = np.zeros(len(runs))
    for k, reason in enumerate(reasons):
        widths = np.array([shares.get(reason, 0.0) for shares in losses])
        ax.barh(rows, widths, 0.6, left, color=_LOSS_COLORS[k % len(_LOSS_COLORS)], label=reason)
        left += widths
    for row, total in enumerate(left):
        ax.annotate(f"{total:.2f} %", (total, row), xytext=(4, 0), textcoords="offset points", va="center")
    labels = [run.label.replace(" (", "\n(") for run in runs]  # parameters under their policy's name
    ax.set_yticks(rows, labels, fontsize=9 if len(runs) < 6 else 8)
    ax.set(ylim=(max(len(runs) - 0.5, 1.2), min(-0.5, 0.5 - 1.2 / len(runs))))
    ax.set(title="Requests lost", xlabel="measured requests (%)", xlim=(0, max(left.max() * 1.25, 1.0)))
    ax.grid(axis="y", visible=False)
    if reasons:
        ax.legend(loc="best")


def _loss_order(reason: str) -> tuple[int, str]:
    return (0 if reason == "late" else 2 if reason == "failed" else 1, reason)


def _attainment(ax: Axes, runs: Runs) -> None:
    names = list(runs[0].summary.models)
    few = len(names) <= _NAMED_MODELS
    width = 0.8 / len(runs)
    lowest = 99.0
    for i, run in enumerate(runs):
        summary = run.summary
        values = [100 * (summary.models[name].attainment or 0.0) for name in names]
        lowest = min(
            [lowest, *(v for v, name in zip(values, names, strict=True) if summary.models[name].requests)]
        )
        if few:
            ax.bar(np.arange(len(names)) + (i + 0.5) * width - 0.4, values, width * 0.92, color=color_of(i))
        else:
            ax.plot(np.arange(1, len(names) + 1), sorted(values), color=color_of(i), lw=1.6, marker=".", ms=5)
    if few:
        ax.set_xticks(range(len(names)), names, rotation=20 if len(names) > 3 else 0)
        ax.grid(axis="x", visible=False)
    else:
        ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set(title="Attainment by model (dashed: 99 %)", xlabel="model" if few else "models, worst first")
    _attainment_axis(ax, lowest)


def _attainment_over_time(ax: Axes, runs: Runs) -> None:
    lowest = 99.0
    for i, run in enumerate(runs):
        record = run.record
        offered, good = curves.rates_over_time(record)
        share = 100 * good.y / np.maximum(offered.y, 1e-9)
        share[offered.y == 0] = np.nan
        if not np.isnan(share).all():
            lowest = min(lowest, float(np.nanmin(share)))
        ax.plot(offered.x, share, color=color_of(i), lw=1.5)
    ax.set(title="Attainment over time (dashed: 99 %)", xlabel="time (s)")
    ax.set(xlim=(0, runs[0].record.duration / 1e9))
    _attainment_axis(ax, lowest)


def _attainment_axis(ax: Axes, lowest: float) -> None:
    """Begin the axis a little under the worst, so that the difference between 99 and 100 stays visible."""
    span = max(100 - lowest, 2.0)
    ax.axhline(99, color=INK, lw=1, ls="--")
    ax.set(ylabel="answered in time (%)", ylim=(max(0.0, 100 - 1.1 * span), 100 + 0.05 * span))
