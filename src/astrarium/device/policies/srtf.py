"""Srtf runs the job with the shortest remaining time, from the next iteration boundary on (Salus)."""

from __future__ import annotations

from astrarium.device.contract import Job
from astrarium.device.policies import iteration_policies
from astrarium.device.policies._turns import Preempting, Rank
from astrarium.device.state import DeviceState


@iteration_policies.register("srtf")
class Srtf(Preempting):
    """The shortest job runs next. Preemption is free: the paused job's memory stays on the GPU."""

    def rank(self, job: Job, state: DeviceState) -> Rank:
        return (state.remaining(job), *super().rank(job, state))
