"""Priority runs the most important job, from the next iteration boundary on; equals go by arrival."""

from __future__ import annotations

from astrarium.device.contract import Job
from astrarium.device.policies import iteration_policies
from astrarium.device.policies._turns import Preempting, Rank
from astrarium.device.state import DeviceState


@iteration_policies.register("priority")
class Priority(Preempting):
    def rank(self, job: Job, state: DeviceState) -> Rank:
        return (-job.priority, *super().rank(job, state))
