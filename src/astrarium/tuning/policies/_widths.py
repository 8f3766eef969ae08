"""Policies share here how wide trials should run: Algorithm 3.1 of the dissertation, in whole numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache

from astrarium.core.quantities import Time
from astrarium.tuning.contract import Put
from astrarium.tuning.runtime import Place, Width, most_packed, most_spread, packed_times
from astrarium.tuning.state import TrialRow, TuningState

NOTHING = Width(0)


def start_waiting(state: TuningState, widths: Mapping[int, Width]) -> Iterator[Put]:
    """Start every trial that fits, the widest first, on fewer GPUs if it must be: what others hold may never
    be free at the same time. Trials that fit nowhere hold up nobody; equals go by arrival."""
    for row in sorted(state.waiting(), key=lambda row: -widths[row.trial.id]):
        place = widest(state, row.trial.id, widths[row.trial.id])
        if place is not None:
            yield Put(row.trial.id, place, why_there(row, place.width))


def widest(state: TuningState, trial: int, width: Width, least: Width = NOTHING) -> Place | None:
    """Return the widest place that is free, up to *width* and wider than *least*; None if there is none."""
    while width > least:
        place = state.strips.find(width, trial)
        if place is not None or width <= 1:
            return place
        width -= 1
    return None


def why_there(row: TrialRow, width: Width) -> str:
    """Return what a trial has still to do, and on how much it does so."""
    where = f"{width} of a GPU" if width < 1 else f"{width} GPU{'s' if width > 1 else ''}"
    return f"{row.trial.iterations - row.done} iterations to go, on {where}"


def ends_sooner(now: Time, row: TrialRow, width: Width, state: TuningState) -> bool:
    """Tell whether a running trial would end sooner at that width, in spite of the move."""
    assert row.place is not None
    left = state.time_left(now, row, row.place.width)
    return state.time_left(now, row, width) + state.moving < left


def water_filled(
    times: Mapping[int, Time], gpus: int, packed: int, spread: Mapping[int, int]
) -> dict[int, Width]:
    """Divide GPUs in proportion to the *times* left on one GPU each: rounded down, at least one part in
    *packed* of a GPU, at most *spread*."""
    total = max(1, sum(times.values()))
    widths = {}
    for trial, left in times.items():
        whole = min(left * gpus // total, spread[trial])
        widths[trial] = Width(whole) if whole else Width(1, packed)
    return widths


def fluid_widths(
    now: Time, rows: Sequence[TrialRow], gpus: int, state: TuningState, packed: int, spread: int
) -> dict[int, Width]:
    """Return the width of each trial: at most *packed* trials on one GPU, at most *spread* GPUs for one
    trial, and no further than it is believed to pay."""
    times = {row.trial.id: round(state.time_left(now, row, Width(1))) for row in rows}
    limits = {row.trial.id: min(spread, most_spread(state.runtime(row), gpus)) for row in rows}
    return water_filled(times, gpus, trials_per_gpu(rows, state, packed), limits)


def trials_per_gpu(rows: Sequence[TrialRow], state: TuningState, packed: int) -> int:
    """Return c: how many trials may share a GPU, as far as it is believed to pay for each of them, and at
    most *packed*."""
    return min((most_packed(packed_times(state.runtime(row), packed)) for row in rows), default=1)


class GpuBudget:
    """The budget counts the GPUs that widths need, if trials that share a GPU have equal parts of it."""

    def __init__(self, gpus: int, widths: Iterable[Width]) -> None:
        self._gpus = gpus
        self._whole = 0
        self._parts = Counter[int]()
        for width in widths:
            self._count(width, 1)

    @property
    def free(self) -> int:
        """Return the GPUs to spare; below zero where not all trials can run at a time."""
        shared = sum(-(-count // parts) for parts, count in self._parts.items())
        return self._gpus - self._whole - shared

    def changed(self, before: Width, after: Width) -> bool:
        """Change the width of a trial if all still fit; tell whether they do."""
        self._count(before, -1)
        self._count(after, 1)
        if self.free >= 0:
            return True
        self._count(after, -1)
        self._count(before, 1)
        return False

    def _count(self, width: Width, by: int) -> None:
        if width.denominator > 1:
            self._parts[width.denominator] += by
        else:
            self._whole += by * width.numerator


def wider(width: Width) -> Width:
    """Return the next larger width."""
    return whole(1) if width.denominator > 1 else whole(width.numerator + 1)


# Fractions are slow to make and to compare, and plans are tried by the hundred.
@cache
def part(parts: int) -> Width:
    return Width(1, parts)


@cache
def whole(gpus: int) -> Width:
    return Width(gpus)
