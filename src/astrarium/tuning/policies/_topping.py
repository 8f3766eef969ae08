"""GPUs that are left over when widths are rounded down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush

from astrarium.core.units import Time
from astrarium.tuning.ledger import TrialRow
from astrarium.tuning.places import Width
from astrarium.tuning.state import TuningState


def topped_up(
    now: Time,
    rows: Sequence[TrialRow],
    gpus: int,
    state: TuningState,
    widths: Mapping[int, Width],
    spread: int,
) -> dict[int, Width]:
    """They go to whoever would end last, one by one, as long as that makes it shorter and all still fit."""
    found, by_trial = dict(widths), {row.trial.id: row for row in rows}
    last = [(-state.time_left(now, row, widths[trial]), trial) for trial, row in by_trial.items()]
    heapify(last)
    room = _Room(gpus, widths.values())
    while last and not room.full:
        height, trial = heappop(last)
        wider = Width(1) if found[trial] < 1 else found[trial] + 1
        then = state.time_left(now, by_trial[trial], wider)
        if wider <= spread and then < -height and room.widened(found[trial]):
            found[trial] = wider
            heappush(last, (-then, trial))
    return found


class _Room:
    """Whole GPUs that widths need, where those on parts of one fill them."""

    def __init__(self, gpus: int, widths: Iterable[Width]) -> None:
        self._gpus, all_widths = gpus, list(widths)
        self._parts = max((width.denominator for width in all_widths), default=1)
        self._shared = sum(width < 1 for width in all_widths)
        self._whole = sum(int(width) for width in all_widths)

    @property
    def full(self) -> bool:
        """Nobody can be made wider: one who is alone on a GPU, and has a part of it, could be."""
        return self._needed(self._whole, self._shared) >= self._gpus and self._shared % self._parts != 1

    def widened(self, width: Width) -> bool:
        """Whether there was room to make one of that width wider by a step."""
        whole, shared = self._whole + 1, self._shared - (width < 1)
        fits = self._needed(whole, shared) <= self._gpus
        if fits:
            self._whole, self._shared = whole, shared
        return fits

    def _needed(self, whole: int, shared: int) -> int:
        return whole - (-shared // self._parts)
