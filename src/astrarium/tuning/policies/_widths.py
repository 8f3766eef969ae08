"""How wide trials should run: Algorithm 3.1 of the dissertation, in whole numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from astrarium.core.units import Time
from astrarium.tuning.runtime import Width, most_packed, most_spread, packed_times
from astrarium.tuning.state import TrialRow, TuningState


def water_filled(
    times: Mapping[int, Time], gpus: int, packed: int, spread: Mapping[int, int]
) -> dict[int, Width]:
    """GPUs in proportion to the *times* left on one GPU each: rounded down, at least one part in *packed* of
    a GPU, at most *spread*."""
    total = max(1, sum(times.values()))
    found = {}
    for trial, left in times.items():
        whole = min(left * gpus // total, spread[trial])
        found[trial] = Width(whole) if whole else Width(1, packed)
    return found


def fluid_widths(
    now: Time, rows: Sequence[TrialRow], gpus: int, state: TuningState, packed: int, spread: int
) -> dict[int, Width]:
    """At most *packed* on one GPU and *spread* GPUs for one, and no further than it is believed to pay."""
    times = {row.trial.id: round(state.time_left(now, row, Width(1))) for row in rows}
    limits = {row.trial.id: min(spread, most_spread(state.runtime(row), gpus)) for row in rows}
    return water_filled(times, gpus, packs(rows, state, packed), limits)


def packs(rows: Sequence[TrialRow], state: TuningState, packed: int) -> int:
    """c: on one GPU as many as are believed to pay for each of them, and at most *packed*."""
    return min((most_packed(packed_times(state.runtime(row), packed)) for row in rows), default=1)
