"""Fluid is the policy of the dissertation of Yu: how wide trials run goes by how much they have to do.

StaticFluid (Algorithm 3.1) gives each trial of a new group GPUs, or a part of one, in proportion to its work;
the trial keeps them to its end. DynamicFluid (Algorithm 3.2) also makes running trials wider or narrower,
where that pays for the move: when GPUs are free and nobody waits.

Five rules of DynamicFluid are ours. A trial is not made narrower where it would then end after all others:
the printed rule compares areas, and would shrink a trial that is about to end. A trial that cannot be as wide
as it should be takes what there is. GPUs that the printed rule leaves over, as it rounds down, go to the
trials that would end last: where there are as many trials as GPUs, it packs all that are shorter than the
mean, and half of the GPUs have nothing to do. Trials that arrive while others run are planned together with
them, on all GPUs. An asynchronous search asks for one trial whenever one ends: planned on the one GPU that is
idle then, each would have that one, and the trials that a search promotes, which have most to do, would never
have more. Last, waiting trials are planned anew where measurements show that more, or fewer, can share a GPU
than was believed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Annotated

import msgspec

from astrarium.core.quantities import Time
from astrarium.tuning.contract import Action, Event, GroupArrived, Put, RuntimeMeasured
from astrarium.tuning.policies import tuning_policies
from astrarium.tuning.policies._widths import (
    GpuBudget,
    ends_sooner,
    fluid_widths,
    start_waiting,
    trials_per_gpu,
    wider,
    widest,
)
from astrarium.tuning.runtime import Place, Width
from astrarium.tuning.state import TrialRow, TuningState


@tuning_policies.register("static-fluid")
class StaticFluid:
    class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """Neither packing nor spreading goes further than it is believed to pay."""

        packed: Annotated[
            int, msgspec.Meta(ge=1, description="trials on one GPU at most: what its memory holds")
        ] = 4
        spread: Annotated[int, msgspec.Meta(ge=1, description="GPUs for one trial at most")] = 8

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        self._widths: dict[int, Width] = {}
        self._crowded: set[int] = set()  # trials that came when no GPU was idle

    def decide(self, now: Time, events: Sequence[Event], state: TuningState) -> Iterator[Action]:
        for event in events:
            if type(event) is GroupArrived:
                self._plan(now, event, state)
        late = [row for row in state.waiting() if row.trial.id in self._crowded]
        if late and (idle := len(state.strips.idle)):
            self._widths |= self._widths_for(now, late, idle, state)
        yield from start_waiting(state, self._widths)

    def _plan(self, now: Time, group: GroupArrived, state: TuningState) -> None:
        """Plan a group on the GPUs that are idle. Where none is, plan it together with all open trials, on
        parts of GPUs that may become free, and once more when a GPU is idle."""
        rows = [state.open[trial.id] for trial in group.trials if trial.id in state.open]
        idle = len(state.strips.idle)
        widths = self._widths_for(now, rows if idle else list(state.open.values()), idle or state.gpus, state)
        self._widths |= {row.trial.id: widths[row.trial.id] for row in rows}
        if not idle:
            self._crowded |= {row.trial.id for row in rows}

    def _widths_for(
        self, now: Time, rows: Sequence[TrialRow], gpus: int, state: TuningState
    ) -> dict[int, Width]:
        return fluid_widths(now, rows, gpus, state, self.parameters.packed, self.parameters.spread)


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
    topped = dict(widths)
    by_trial = {row.trial.id: row for row in rows}
    last = [(-state.time_left(now, row, widths[trial]), trial) for trial, row in by_trial.items()]
    heapify(last)
    budget = GpuBudget(gpus, widths.values())
    while last:
        height, trial = heappop(last)
        step = wider(topped[trial])
        then = state.time_left(now, by_trial[trial], step)
        if step <= spread and then < -height and budget.changed(topped[trial], step):
            topped[trial] = step
            heappush(last, (-then, trial))
    return topped


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
            wide = widest(state, row.trial.id, width, place.width)
            if wide is not None and ends_sooner(now, row, wide.width, state):
                yield Put(row.trial.id, wide, f"wider than {place.width}: there are GPUs that nobody needs")
        elif width < place.width and _cheaper(now, row, place.width, width, longest, state):
            narrow = state.strips.find(width, row.trial.id)
            if narrow is not None:
                yield Put(row.trial.id, narrow, f"narrower than {place.width}: others have more to do")


def _left(now: Time, row: TrialRow, state: TuningState) -> float:
    assert row.place is not None
    return state.time_left(now, row, row.place.width)


def _cheaper(
    now: Time, row: TrialRow, before: Width, after: Width, longest: float, state: TuningState
) -> bool:
    """Tell whether the trial takes less GPU time at the width *after*, and the group does not wait for it."""
    then = state.time_left(now, row, after) + state.moving
    return float(after) * then < float(before) * state.time_left(now, row, before) and then <= longest
