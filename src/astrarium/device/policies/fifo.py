"""Fifo runs one job at a time, in order of arrival: what clusters do today, and the baseline."""

from __future__ import annotations

from collections.abc import Iterator

from astrarium.device.contract import Action, Admit
from astrarium.device.policies import iteration_policies
from astrarium.device.policies._turns import OneLane
from astrarium.device.state import DeviceState


@iteration_policies.register("fifo")
class Fifo(OneLane):
    """The GPU belongs to one job until the job has ended."""

    def _let_in(self, state: DeviceState) -> Iterator[Action]:
        if not state.admitted and state.waiting:
            yield Admit(min(state.waiting.values(), key=lambda job: self.rank(job, state)).id)
