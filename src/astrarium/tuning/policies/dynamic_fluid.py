"""DynamicFluid (Algorithm 3.2) is StaticFluid that also makes running trials wider or narrower, where that
pays for the move: when GPUs are free and nobody waits.

Five rules are ours. A trial is not made narrower where it would then end after all others: the printed rule
compares areas, and would shrink a trial that is about to end. A trial that cannot be as wide as it should be
takes what there is. GPUs that the printed rule leaves over, as it rounds down, go to the trials that would
end last: where there are as many trials as GPUs, it packs all that are shorter than the mean, and half of the
GPUs have nothing to do. Trials that arrive while others run are planned together with them, on all GPUs. An
asynchronous search asks for one trial whenever one ends: planned on the one GPU that is idle then, each would
have that one, and the trials that a search promotes, which have most to do, would never have more. Last,
waiting trials are planned anew where measurements show that more, or fewer, can share a GPU than was
believed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush

from astrarium.core.units import Time
from astrarium.tuning.contract import Action, Event, GroupArrived, Put, RuntimeMeasured
from astrarium.tuning.policies import tuning_policies
from astrarium.tuning.policies._widths import trials_per_gpu, widest
from astrarium.tuning.policies.static_fluid import StaticFluid
from astrarium.tuning.runtime import Place, Width
from astrarium.tuning.state import TrialRow, TuningState


def topped_up(
    now: Time,
    rows: Sequence[TrialRow],
    gpus: int,
    state: TuningState,
    widths: Mapping[int, Width],
    spread: int,
) -> dict[int, Width]:
    """Give GPUs that are left over to the trials that would end last, one by one, as long as that shortens
    them and all still fit."""
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
    """The room counts the whole GPUs that widths need, where trials on parts of a GPU fill it up."""

    def __init__(self, gpus: int, widths: Iterable[Width]) -> None:
        self._gpus, all_widths = gpus, list(widths)
        self._parts = max((width.denominator for width in all_widths), default=1)
        self._shared = sum(width < 1 for width in all_widths)
        self._whole = sum(int(width) for width in all_widths)

    @property
    def full(self) -> bool:
        """Tell whether no trial can be made wider; one alone on a GPU, with a part of it, could be."""
        return self._needed(self._whole, self._shared) >= self._gpus and self._shared % self._parts != 1

    def widened(self, width: Width) -> bool:
        """Make a trial of that width wider by a step where there is room; tell whether there was."""
        whole, shared = self._whole + 1, self._shared - (width < 1)
        fits = self._needed(whole, shared) <= self._gpus
        if fits:
            self._whole, self._shared = whole, shared
        return fits

    def _needed(self, whole: int, shared: int) -> int:
        return whole - (-shared // self._parts)


@tuning_policies.register("dynamic-fluid")
class DynamicFluid(StaticFluid):
    def __init__(self, parameters: StaticFluid.Parameters) -> None:
        super().__init__(parameters)
        self._trials_per_gpu = 0  # as estimated when waiting trials were planned

    def decide(self, now: Time, events: Sequence[Event], state: TuningState) -> Iterator[Action]:
        if any(type(event) is RuntimeMeasured for event in events):
            self._plan_again(now, state)
        yield from super().decide(now, events, state)
        if not state.waiting() and state.strips.idle:
            yield from self._resize_running(now, state)

    def _plan(self, now: Time, group: GroupArrived, state: TuningState) -> None:
        widths = self._widths_for(now, list(state.open.values()), state.gpus, state)
        mine = [trial.id for trial in group.trials if trial.id in state.open]
        self._widths |= {trial: widths[trial] for trial in mine}
        self._trials_per_gpu = trials_per_gpu(state.waiting(), state, self.parameters.packed)

    def _plan_again(self, now: Time, state: TuningState) -> None:
        waiting = [row for row in state.waiting() if row.trial.id in self._widths]
        if waiting and trials_per_gpu(waiting, state, self.parameters.packed) != self._trials_per_gpu:
            widths = self._widths_for(now, list(state.open.values()), state.gpus, state)
            self._widths |= {row.trial.id: widths[row.trial.id] for row in waiting}
            self._trials_per_gpu = trials_per_gpu(waiting, state, self.parameters.packed)

    def _resize_running(self, now: Time, state: TuningState) -> Iterator[Action]:
        rows = state.running()
        wanted = self._widths_for(now, rows, state.gpus, state)
        longest = max((_left(now, row, state) for row in rows), default=0.0)
        for row in sorted(rows, key=lambda row: -wanted[row.trial.id]):
            if row.settled and row.place is not None:
                yield from self._changed(now, row, row.place, wanted[row.trial.id], longest, state)

    def _widths_for(
        self, now: Time, rows: Sequence[TrialRow], gpus: int, state: TuningState
    ) -> dict[int, Width]:
        widths = super()._widths_for(now, rows, gpus, state)
        return topped_up(now, rows, gpus, state, widths, self.parameters.spread)

    def _changed(
        self, now: Time, row: TrialRow, place: Place, width: Width, longest: float, state: TuningState
    ) -> Iterator[Put]:
        if width > place.width:
            found = widest(state, row.trial.id, width, place.width)
            if found is not None and _sooner(now, row, place.width, found.width, state):
                yield Put(row.trial.id, found, f"wider than {place.width}: there are GPUs that nobody needs")
        elif width < place.width and _cheaper(now, row, place.width, width, longest, state):
            found = state.strips.find(width, row.trial.id)
            if found is not None:
                yield Put(row.trial.id, found, f"narrower than {place.width}: others have more to do")


def _left(now: Time, row: TrialRow, state: TuningState) -> float:
    assert row.place is not None
    return state.time_left(now, row, row.place.width)


def _sooner(now: Time, row: TrialRow, before: Width, after: Width, state: TuningState) -> bool:
    return state.time_left(now, row, after) + state.moving < state.time_left(now, row, before)


def _cheaper(
    now: Time, row: TrialRow, before: Width, after: Width, longest: float, state: TuningState
) -> bool:
    """Tell whether the trial takes less GPU time at the width *after*, and the group does not wait for it."""
    then = state.time_left(now, row, after) + state.moving
    return float(after) * then < float(before) * state.time_left(now, row, before) and then <= longest
