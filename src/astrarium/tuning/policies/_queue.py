"""Trials that wait for GPUs, each with the width that it was given, the widest first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from astrarium.tuning.actions import Put
from astrarium.tuning.ledger import TrialRow
from astrarium.tuning.places import Width
from astrarium.tuning.state import TuningState


def started(state: TuningState, widths: Mapping[int, Width]) -> Iterator[Put]:
    """Whoever fits; those who do not fit yet hold up nobody. Equals in order of arrival."""
    for row in sorted(state.waiting(), key=lambda row: -widths[row.trial.id]):
        place = state.strips.find(widths[row.trial.id], row.trial.id)
        if place is not None:
            yield Put(row.trial.id, place, _why(row, widths[row.trial.id]))


def _why(row: TrialRow, width: Width) -> str:
    return (
        f"{row.trial.iterations - row.done} iterations to go, on {width} of a GPU"
        if width < 1
        else (f"{row.trial.iterations - row.done} iterations to go, on {width} GPU{'s' if width > 1 else ''}")
    )
