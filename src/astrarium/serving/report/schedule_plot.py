"""A close look at the schedule: what every GPU ran in a short stretch of the run."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from astrarium.core.quantities import MILLISECOND, Time
from astrarium.run.plots import COLORS, INK, margins, picture
from astrarium.serving import autoscale
from astrarium.serving.autoscale import Floats
from astrarium.serving.ledger import Fate
from astrarium.serving.record import Ints, ServingRecord
from astrarium.serving.report.plots import Axes, Runs

_BATCHES_A_GPU = 10  # about as many bars as stay readable side by side
_MOST_GPUS = 16
_MOST_GPUS_OF_MANY = 8  # with more than three runs on one picture
_MOST_BARS = 1000
_MOST_LABELS = 400


def draw_schedule(runs: Runs, path: Path) -> None:
    """Draw one panel a run, all over the same stretch of time from the end of the warm-up."""
    stretch = _stretch([run.record for run in runs])
    gpus = min(len(runs[0].record.setup.gpus), _MOST_GPUS if len(runs) <= 3 else _MOST_GPUS_OF_MANY)
    height = 0.7 + len(runs) * (0.5 + 0.22 * gpus)
    with picture(path, 15, height, len(runs), 1, sharex=True) as (figure, axes):
        margins(figure, left=0.6, right=0.2, bottom=0.5, top=0.3, w=0, h=0.5)
        for run, ax in zip(runs, axes.flat, strict=True):
            _panel(ax, run.label, run.record, stretch, gpus)
        axes.flat[-1].set(xlabel="time (ms)")


def _stretch(records: list[ServingRecord]) -> tuple[Time, Time]:
    """Return a stretch with as many batches as one can tell apart, by the slowest policy's mean batch."""
    start = records[0].warmup
    duration = records[0].duration
    longest = 0.0
    for record in records:
        done = record.batches.fate == Fate.FINISHED
        if done.any():
            longest = max(longest, float(np.mean((record.batches.finished - record.batches.started)[done])))
    span = round(longest * _BATCHES_A_GPU) or duration
    return start, min(start + span, max(duration, start + 1))


def _panel(ax: Axes, label: str, record: ServingRecord, stretch: tuple[Time, Time], gpus: int) -> None:
    begin, end = stretch
    started, finished = autoscale.occupancy(record.batches, record.setup.preemption_cost)
    shown = (finished > begin) & (started < end) & (record.batches.gpu < gpus) & (finished > started)
    runs = np.flatnonzero(shown)[:_MOST_BARS]
    left = np.maximum(started[runs], begin) / MILLISECOND
    right = np.minimum(finished[runs], end) / MILLISECOND
    _bars(ax, record, runs, left, right)
    _sizes(ax, record, runs, left, right, (end - begin) / MILLISECOND)
    count = len(record.setup.gpus)
    note = f" (the first {gpus} of {count} GPUs)" if count > gpus else ""
    ax.set(title=f"{label}{note}: the batches on each GPU and their sizes", ylabel="GPU id")
    ax.set(xlim=(begin / MILLISECOND, end / MILLISECOND), ylim=(gpus - 0.4, -0.6))
    ax.set_yticks(range(0, gpus, 1 if gpus <= 16 else 4))
    ax.grid(axis="y", visible=False)


def _bars(ax: Axes, record: ServingRecord, runs: Ints, left: Floats, right: Floats) -> None:
    """Draw a bar in a color for each model; hollow and hatched where the work was lost."""
    from matplotlib.collections import PolyCollection

    row = record.batches.gpu[runs]
    corners = [(left, row - 0.4), (left, row + 0.4), (right, row + 0.4), (right, row - 0.4)]
    boxes = np.stack([np.stack(corner, axis=-1) for corner in corners], axis=1)
    colors = np.array(COLORS)[record.batches.model[runs] % len(COLORS)]
    lost = record.batches.fate[runs] != Fate.FINISHED
    ax.add_collection(
        PolyCollection(list(boxes[~lost]), facecolors=colors[~lost].tolist(), edgecolors="white", lw=0.8)
    )
    if lost.any():
        edge = colors[lost].tolist()
        ax.add_collection(
            PolyCollection(list(boxes[lost]), facecolors="white", edgecolors=edge, hatch="////")
        )


def _sizes(ax: Axes, record: ServingRecord, runs: Ints, left: Floats, right: Floats, span: float) -> None:
    """Write the number of requests where it fits into the bar."""
    batches = record.batches
    for i in np.flatnonzero(right - left > span / 70)[:_MOST_LABELS].tolist():
        run = int(runs[i])
        ink = "white" if batches.fate[run] == Fate.FINISHED else INK
        place = ((left[i] + right[i]) / 2, batches.gpu[run])
        ax.text(*place, str(batches.size[run]), ha="center", va="center", fontsize=7.5, color=ink)
