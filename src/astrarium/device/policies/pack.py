"""Pack admits as many jobs as there is memory for, each in the lane that Algorithm 2.1 finds (Salus)."""

from __future__ import annotations

from astrarium.device.contract import Job
from astrarium.device.policies import iteration_policies
from astrarium.device.policies._turns import Turns
from astrarium.device.state import DeviceState


@iteration_policies.register("pack")
class Pack(Turns):
    """Lanes run side by side; within a lane, jobs go in order of arrival."""

    def place(self, job: Job, state: DeviceState) -> int | None:
        return state.layout.find(state.claim(job), job.ephemeral, state.running)
