"""StaticFluid (Algorithm 3.1) gives each trial of a new group GPUs, or a part of one, in proportion to its
work; the trial keeps them to its end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec

from astrarium.core.units import Time
from astrarium.tuning.contract import Action, Event, GroupArrived
from astrarium.tuning.policies import tuning_policies
from astrarium.tuning.policies._widths import fluid_widths, start_waiting
from astrarium.tuning.runtime import Width
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
