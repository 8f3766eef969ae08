"""When the GPUs of a few groups are busy (Figure 2d)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from astrarium.core.quantities import SECOND
from astrarium.placement.groups.layout import Group, Tables
from astrarium.placement.groups.simulation import SimulatedRequests
from astrarium.placement.problem import PlacedModel
from astrarium_papers.alpaserve._common.settings import COLORS, outcome

Spans = npt.NDArray[np.float64]  # from and to, in seconds


def of(
    models: Sequence[PlacedModel],
    placements: dict[str, list[Group]],
    workload: SimulatedRequests,
    shown: tuple[float, float],
) -> dict[str, Any]:
    spans = {name: busy(models, groups, workload) for name, groups in placements.items()}
    return {
        "shown": {
            name: [np.round(level, 4).tolist() for level in levels(busy_spans, shown)]
            for name, busy_spans in spans.items()
        },
        "both_busy": {name: _together(busy_spans) for name, busy_spans in spans.items()},
    }


def busy(models: Sequence[PlacedModel], groups: list[Group], workload: SimulatedRequests) -> Spans:
    """Return one row for each stage of each request."""
    tables = Tables.of(models)
    where = outcome(models, groups, workload).group.tolist()
    free = [[0.0] * group.shape.stages for group in groups]
    spans = []
    for arrival, model, group in zip(
        (workload.arrivals / SECOND).tolist(), workload.models, where, strict=True
    ):
        times = tables.times[tables.kinds[groups[group].shape], model, 0] / SECOND
        now = arrival
        for stage, time in enumerate(times[: groups[group].shape.stages].tolist()):
            begin = max(now, free[group][stage])
            now = free[group][stage] = begin + time
            spans.append((begin, now))
    return np.array(spans)


def levels(spans: Spans, shown: tuple[float, float] | None = None) -> tuple[Spans, Spans]:
    """Return instants, and how many GPUs are busy from each on."""
    moments = np.round(np.concatenate([spans[:, 0], spans[:, 1]]), 6)  # who ends and who begins: one instant
    times, which = np.unique(moments, return_inverse=True)
    changes = np.bincount(which, np.repeat([1.0, -1.0], len(spans)))
    inside = slice(None) if shown is None else (times >= shown[0]) & (times < shown[1])
    return times[inside], np.cumsum(changes).astype(np.float64)[inside]


def _together(spans: Spans) -> float:
    """Return the part of the time in which some GPU works in which two do."""
    times, count = levels(spans)
    lasted = np.diff(times)
    return round(float(lasted[count[:-1] > 1].sum() / lasted[count[:-1] > 0].sum()), 4)


def draw(axis: Any, data: dict[str, Any]) -> None:
    for name, (times, count) in data["shown"].items():
        percent = [50 * value for value in count]
        axis.fill_between(times, percent, step="post", alpha=0.25, color=COLORS[name])
        axis.step(times, percent, where="post", lw=0.8, color=COLORS[name], label=name)
    axis.set(title="utilization, CV 3", xlabel="time (s)", ylabel="GPUs busy (%)", ylim=(0, 125))
    axis.legend(fontsize=7, loc="upper left", ncol=2)
