"""DynamicFluid (Algorithm 3.2): StaticFluid, and when GPUs are free and nobody waits, trials that run are
made wider or narrower where that pays for the move.

Five rules are ours. A trial is not made narrower where it would then end after all others: the printed rule
compares areas, and would shrink one that is about to end. One that cannot be as wide as it should be takes
what there is. GPUs that the printed rule leaves over, as it rounds down, go to those that would end last:
where there are as many trials as GPUs, it packs all that are shorter than the mean, and half of the GPUs have
nothing to do. And who comes while others run is planned together with them, on all GPUs. An asynchronous
search asks for one trial whenever one ends: planned on the one GPU that is idle then, each would have that
one, and those that a search promotes, which have most to do, would never have more. Last, those who wait are
planned anew where measurements show that more, or fewer, can share a GPU than was believed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from astrarium.core.units import Time
from astrarium.tuning.actions import Action, Put
from astrarium.tuning.events import Event, GroupArrived, RuntimeMeasured
from astrarium.tuning.ledger import TrialRow
from astrarium.tuning.places import Place, Width
from astrarium.tuning.policies._queue import widest
from astrarium.tuning.policies._topping import topped_up
from astrarium.tuning.policies._widths import packs
from astrarium.tuning.policies.static_fluid import StaticFluid
from astrarium.tuning.registry import tuning_policies
from astrarium.tuning.state import TuningState


@tuning_policies.register("dynamic-fluid")
class DynamicFluid(StaticFluid):
    def __init__(self, parameters: StaticFluid.Parameters) -> None:
        super().__init__(parameters)
        self._packs = 0  # as was believed when those who wait were planned

    def decide(self, now: Time, events: Sequence[Event], state: TuningState) -> Iterator[Action]:
        if any(type(event) is RuntimeMeasured for event in events):
            self._plan_again(now, state)
        yield from super().decide(now, events, state)
        if not state.waiting() and state.strips.idle:
            yield from self._again(now, state)

    def _plan(self, now: Time, group: GroupArrived, state: TuningState) -> None:
        widths = self._wide(now, list(state.open.values()), state.gpus, state)
        mine = [trial.id for trial in group.trials if trial.id in state.open]
        self._widths |= {trial: widths[trial] for trial in mine}
        self._packs = packs(state.waiting(), state, self.parameters.packed)

    def _plan_again(self, now: Time, state: TuningState) -> None:
        waiting = [row for row in state.waiting() if row.trial.id in self._widths]
        if waiting and packs(waiting, state, self.parameters.packed) != self._packs:
            widths = self._wide(now, list(state.open.values()), state.gpus, state)
            self._widths |= {row.trial.id: widths[row.trial.id] for row in waiting}
            self._packs = packs(waiting, state, self.parameters.packed)

    def _again(self, now: Time, state: TuningState) -> Iterator[Action]:
        rows = state.running()
        wanted = self._wide(now, rows, state.gpus, state)
        longest = max((_left(now, row, state) for row in rows), default=0.0)
        for row in sorted(rows, key=lambda row: -wanted[row.trial.id]):
            if row.settled and row.place is not None:
                yield from self._changed(now, row, row.place, wanted[row.trial.id], longest, state)

    def _wide(self, now: Time, rows: Sequence[TrialRow], gpus: int, state: TuningState) -> dict[int, Width]:
        widths = super()._wide(now, rows, gpus, state)
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
    """It takes less of the GPUs, and the group does not wait for it."""
    then = state.time_left(now, row, after) + state.moving
    return float(after) * then < float(before) * state.time_left(now, row, before) and then <= longest
