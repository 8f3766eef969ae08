"""The options of a trial are the widths it could have, and how long it would still take on each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from astrarium.core.quantities import Time
from astrarium.tuning.runtime import Runtime, Width, most_packed, most_spread, packed_times
from astrarium.tuning.state import TrialRow, TuningState


class TrialOptions(NamedTuple):
    """The options hold the times from now to the trial's end, with the cost of a move: `parts[c - 1]` on one
    part in c of a GPU, `whole[w - 1]` on w GPUs; no further than it pays."""

    trial: int
    alone: float  # on one GPU from now on, without a move
    total: int  # iterations of its candidate when it ends
    has: Width  # 0 while the trial waits
    parts: Sequence[float]
    whole: Sequence[float]

    def time(self, width: Width) -> float:
        """Return the time left at this width, or at the widest that pays if that is less."""
        times, at = (
            (self.parts, width.denominator) if width.denominator > 1 else (self.whole, width.numerator)
        )
        return times[min(at, len(times)) - 1]

    @property
    def best(self) -> float:
        return min(*self.parts, *self.whole)


def trial_options(
    now: Time, row: TrialRow, gpus: int, state: TuningState, packed: int, spread: int
) -> TrialOptions:
    """Return what the trial could have; a trial that moves does so at the end of its iteration."""
    runtime = state.runtime(row)
    left = state.left(now, row)
    place = row.going or row.place
    factors = _factors(runtime, packed, min(spread, gpus))
    if place is None:
        parts, whole = _times(factors, left * runtime.iteration, 0.0)
        return TrialOptions(row.trial.id, left * runtime.iteration, row.trial.total, Width(0), parts, whole)
    later = int(left)
    before = state.moving + (left - later) * runtime.at(place.width)
    parts, whole = _times(factors, later * runtime.iteration, before)
    times, at = (parts, place.parts) if place.parts > 1 else (whole, len(place.gpus))
    if at <= len(times):
        times[at - 1] = left * runtime.at(place.width)
    return TrialOptions(row.trial.id, left * runtime.iteration, row.trial.total, place.width, parts, whole)


def trials_per_gpu(trials: Iterable[TrialOptions]) -> int:
    """Return how many trials may share a GPU so that it pays for all of them."""
    return min((len(trial.parts) for trial in trials), default=1)


class _Factors(NamedTuple):
    """The factors say how many times as long an iteration takes as alone on a GPU."""

    parts: list[float]
    whole: list[float]


@lru_cache(maxsize=4096)
def _factors(runtime: Runtime, packed: int, spread: int) -> _Factors:
    most = most_packed(packed_times(runtime, packed), 0.0)
    furthest = most_spread(runtime, spread)
    parts = [runtime.at(Width(1, count)) / runtime.iteration for count in range(1, most + 1)]
    whole = [runtime.at(Width(count)) / runtime.iteration for count in range(1, furthest + 1)]
    return _Factors(parts, whole)


def _times(factors: _Factors, alone: float, before: float) -> tuple[list[float], list[float]]:
    parts = [before + alone * factor for factor in factors.parts]
    return parts, [before + alone * factor for factor in factors.whole]
