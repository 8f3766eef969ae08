"""Fair gives equal service: the job that has had the least GPU time runs the next iteration (Salus)."""

from __future__ import annotations

from astrarium.device.contract import Job
from astrarium.device.policies import iteration_policies
from astrarium.device.policies._turns import OneLane, Rank
from astrarium.device.state import DeviceState


@iteration_policies.register("fair")
class Fair(OneLane):
    """The job with the least service since its admission runs next: a late job does not catch up."""

    def rank(self, job: Job, state: DeviceState) -> Rank:
        return (state.credit(job.id) + state.row(job.id).service, *super().rank(job, state))
