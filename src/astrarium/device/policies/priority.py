"""The most important job runs, from the next iteration boundary on; equals go by arrival."""

from __future__ import annotations

from astrarium.device.jobs import Job
from astrarium.device.policies._turns import Preempting, Rank
from astrarium.device.registry import iteration_policies
from astrarium.device.state import DeviceState


@iteration_policies.register("priority")
class Priority(Preempting):
    def rank(self, job: Job, state: DeviceState) -> Rank:
        return (-job.priority, *super().rank(job, state))
