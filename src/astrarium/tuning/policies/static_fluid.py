"""StaticFluid (Algorithm 3.1): when a group comes, each of its trials is given GPUs, or a part of one, in
proportion to its work; it keeps them to its end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from astrarium.core.units import Time
from astrarium.tuning.actions import Action
from astrarium.tuning.events import Event, GroupArrived
from astrarium.tuning.places import Width
from astrarium.tuning.policies._queue import started
from astrarium.tuning.policies._widths import fluid_widths
from astrarium.tuning.registry import tuning_policies
from astrarium.tuning.state import TuningState


@tuning_policies.register("static-fluid")
class StaticFluid:
    class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """*packed*: trials on one GPU at most (what its memory holds); *spread*: GPUs for one trial at most.
        Neither goes further than it is believed to pay."""

        packed: int = 4
        spread: int = 8

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        self._widths: dict[int, Width] = {}

    def decide(self, now: Time, events: Sequence[Event], state: TuningState) -> Iterator[Action]:
        for event in events:
            if type(event) is GroupArrived:
                self._plan(now, event, state)
        yield from started(state, self._widths)

    def _plan(self, now: Time, group: GroupArrived, state: TuningState) -> None:
        """On GPUs that are idle now; where none is, as if all were: they will be."""
        rows = [state.open[trial.id] for trial in group.trials]
        gpus = len(state.strips.idle) or state.gpus
        limits = self.parameters
        self._widths |= fluid_widths(now, rows, gpus, state, limits.packed, limits.spread)
