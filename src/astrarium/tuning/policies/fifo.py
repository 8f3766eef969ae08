"""Fifo gives each trial one GPU, in order of arrival: what tuning libraries do by themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from astrarium.core.choice import NoParameters
from astrarium.core.quantities import Time
from astrarium.tuning.contract import Action, Event
from astrarium.tuning.policies import tuning_policies
from astrarium.tuning.policies._widths import start_waiting
from astrarium.tuning.runtime import Width
from astrarium.tuning.state import TuningState


@tuning_policies.register("fifo")
class Fifo:
    Parameters = NoParameters

    def __init__(self, parameters: NoParameters) -> None:
        """There is nothing to set."""

    def decide(self, now: Time, events: Sequence[Event], state: TuningState) -> Iterator[Action]:
        yield from start_waiting(state, {row.trial.id: Width(1) for row in state.waiting()})
