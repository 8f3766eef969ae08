"""Trials that wait for GPUs, each with the width that it was given, the widest first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from astrarium.tuning.contract import Put
from astrarium.tuning.runtime import Place, Width
from astrarium.tuning.state import TrialRow, TuningState

NOTHING = Width(0)


def started(state: TuningState, widths: Mapping[int, Width]) -> Iterator[Put]:
    """Whoever fits, on fewer GPUs if it must be: what others hold may never be free at the same time. Those
    for whom there is no room hold up nobody. Equals in order of arrival."""
    for row in sorted(state.waiting(), key=lambda row: -widths[row.trial.id]):
        place = widest(state, row.trial.id, widths[row.trial.id])
        if place is not None:
            yield Put(row.trial.id, place, _why(row, place.width))


def widest(state: TuningState, trial: int, width: Width, least: Width = NOTHING) -> Place | None:
    """As wide as that, or as there is room for; wider than *least*."""
    while width > least:
        place = state.strips.find(width, trial)
        if place is not None or width <= 1:
            return place
        width -= 1
    return None


def _why(row: TrialRow, width: Width) -> str:
    return (
        f"{row.trial.iterations - row.done} iterations to go, on {width} of a GPU"
        if width < 1
        else (f"{row.trial.iterations - row.done} iterations to go, on {width} GPU{'s' if width > 1 else ''}")
    )
