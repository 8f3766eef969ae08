"""Groups of trials on some GPUs, without a search: what a policy does with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from astrarium.core.choice import made
from astrarium.core.engine import Engine
from astrarium.core.quantities import Time
from astrarium.core.trace import Step
from astrarium.run.simulate import simulate
from astrarium.tuning.contract import Event, GpusChanged, GroupArrived, Put
from astrarium.tuning.policies import tuning_policies
from astrarium.tuning.runtime import Runtime
from astrarium.tuning.state import TrialRow, TuningState
from astrarium.tuning.world import TuningWorld
from astrarium_papers.fluid._searches import Settings


class GroupsPlayed(NamedTuple):
    rows: list[TrialRow]
    puts: list[tuple[Time, Put]]

    @property
    def end(self) -> Time:
        return max((row.ended for row in self.rows), default=0)


def play_groups(
    policy: str,
    groups: Sequence[tuple[Time, GroupArrived]],
    gpus: int,
    runtime: Runtime,
    moving: Time = 0,
    settings: Settings | None = None,
) -> GroupsPlayed:
    """Run groups of candidates that all have the same *runtime*, which the policy knows."""
    state = TuningState(moving, runtime)
    puts = list[tuple[Time, Put]]()

    def heard(step: Step) -> None:
        puts.extend((step.now, action) for action in step.actions if isinstance(action, Put))

    engine = Engine(state, made(tuning_policies.get(policy), settings, field="policy"), record=heard)
    start: list[tuple[Time, Event]] = [(0, GpusChanged(tuple(range(gpus))))]
    simulate(engine, [*start, *groups], TuningWorld(lambda _: runtime, moving))
    return GroupsPlayed(list(state.ledger.rows.values()), puts)
