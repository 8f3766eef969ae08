"""Iteration policies admit jobs that fit, then give every free lane its next turn.

They differ in who comes first (`rank`) and where a job goes (`place`). Fifo is the baseline, what clusters do
today; fair, pack and srtf are Salus's; priority preempts as srtf does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from astrarium.core.choice import NoParameters
from astrarium.core.policy import SetTimer
from astrarium.core.quantities import MILLISECOND, Time
from astrarium.device import contract
from astrarium.device.contract import Action, Admit, Event, Job, RunIteration
from astrarium.device.lanes import Lane
from astrarium.device.policies import iteration_policies
from astrarium.device.state import DeviceState

GRACE: Time = MILLISECOND
RARELY = 64  # turns: a job that is always late costs the others one moment in so many


class ReturningJobs:
    """The policy waits a moment for jobs that come straight back, as loops do after an iteration."""

    def __init__(self) -> None:
        self._ended: dict[int, Time] = {}  # when those who are not back yet ended an iteration
        self._pass: dict[int, int] = {}  # turns after which a job that was late is not waited for
        self._late: dict[int, int] = {}  # how many those were at first

    def hear(self, now: Time, events: Sequence[Event]) -> None:
        for event in events:
            if type(event) is contract.IterationFinished:
                self._ended[event.job] = now
            elif type(event) is contract.IterationWanted and event.job in self._ended:
                self._came(event.job, now - self._ended.pop(event.job))

    def awaited(self, now: Time, state: DeviceState) -> dict[int, Time]:
        """Return the jobs to wait for, and until when."""
        if not self._ended:
            return {}
        self._ended = {
            job: at for job, at in self._ended.items() if job in state.admitted and job not in state.ready
        }
        soon = {job: at + GRACE for job, at in self._ended.items() if not self._pass.get(job)}
        return {job: until for job, until in soon.items() if until > now}

    def _came(self, job: int, gap: Time) -> None:
        if gap <= GRACE:
            self._pass.pop(job, None)
            self._late.pop(job, None)
        elif self._pass.get(job):
            self._pass[job] -= 1
        else:
            self._pass[job] = self._late[job] = min(2 * self._late.get(job, 0) or 1, RARELY)


Rank = tuple[float, ...]


class Turns:
    """A subclass says which job comes first (`rank`, the smaller the sooner) and where it goes (`place`)."""

    def __init__(self, parameters: NoParameters | None = None) -> None:
        self._returns = ReturningJobs()
        self._awaited: dict[int, Time] = {}  # jobs that come straight back, and until when

    def decide(self, now: Time, events: Sequence[Event], state: DeviceState) -> Iterator[Action]:
        self._returns.hear(now, events)
        self._awaited = self._returns.awaited(now, state)
        if state.waiting:
            yield from self._refuse(events, state)
            yield from self._let_in(state)
        for lane in list(state.layout.lanes) if state.ready else ():
            if state.idle(lane.id) and (ready := state.ready.intersection(lane.jobs)):
                yield self._next(lane, ready, state)

    def _next(self, lane: Lane, ready: set[int], state: DeviceState) -> Action:
        """Return the turn of the best job among those that want one and those that will in a moment, for
        which the lane waits."""
        present = ready.union(self._awaited.keys() & lane.jobs.keys())
        best = min(present, key=lambda job: self.rank(state.admitted[job], state))
        return RunIteration(best) if best in ready else SetTimer(self._awaited[best], f"lane {lane.id}")

    def rank(self, job: Job, state: DeviceState) -> Rank:
        """Rank jobs by arrival."""
        return (state.row(job.id).arrived, job.id)

    def place(self, job: Job, state: DeviceState) -> int | None:
        """Return a lane for a job that waits, NEW_LANE, or None."""
        raise NotImplementedError

    def _refuse(self, events: Sequence[Event], state: DeviceState) -> Iterator[Action]:
        """Refuse new jobs that can never fit."""
        capacity = state.layout.capacity
        for job in [event.job for event in events if isinstance(event, contract.JobArrived)]:
            needed = job.persistent + job.ephemeral
            if needed > capacity and job.id in state.waiting:
                yield contract.Refuse(job.id, f"it needs {needed} bytes, and the GPU has {capacity}")

    def _let_in(self, state: DeviceState) -> Iterator[Action]:
        """Admit every job that fits, in order of rank: jobs that do not fit yet hold up nobody."""
        for job in self._candidates(state):
            lane = self.place(job, state)
            if lane is not None:
                yield Admit(job.id, lane)

    def _candidates(self, state: DeviceState) -> list[Job]:
        """Return waiting jobs whose persistent memory alone would fit, by rank."""
        free = state.layout.free
        fitting = [job for job in state.waiting.values() if state.claim(job) <= free]
        return sorted(fitting, key=lambda job: self.rank(job, state))


class OneLane(Turns):
    """All jobs take turns in a single lane, as large as the largest of them needs."""

    def place(self, job: Job, state: DeviceState) -> int | None:
        layout = state.layout
        if not layout.lanes:
            return contract.NEW_LANE if state.claim(job) + job.ephemeral <= layout.free else None
        lane = layout.lanes[0]
        return lane.id if layout.fits(lane, state.claim(job), job.ephemeral, state.running) else None


class Preempting(OneLane):
    """A job is admitted when it would run: ahead of all admitted jobs, or while they fetch their data.

    Admitting every job that fits would fill the memory with jobs that are paused anyway, and keep out the
    next one that should go before them.
    """

    def _let_in(self, state: DeviceState) -> Iterator[Action]:
        for job in self._candidates(state):
            first = all(self.rank(job, state) < self.rank(other, state) for other in state.admitted.values())
            if not first and (state.running or state.ready.intersection(state.admitted)):
                return
            if not first and self._awaited:
                yield SetTimer(max(self._awaited.values()), "let in")
                return
            lane = self.place(job, state)
            if lane is not None:
                yield Admit(job.id, lane)
                return


@iteration_policies.register("fifo")
class Fifo(OneLane):
    """The GPU belongs to one job until the job has ended."""

    def _let_in(self, state: DeviceState) -> Iterator[Action]:
        if not state.admitted and state.waiting:
            yield Admit(min(state.waiting.values(), key=lambda job: self.rank(job, state)).id)


@iteration_policies.register("fair")
class Fair(OneLane):
    """The job with the least service since its admission runs next: a late job does not catch up."""

    def rank(self, job: Job, state: DeviceState) -> Rank:
        return (state.credit(job.id) + state.row(job.id).service, *super().rank(job, state))


@iteration_policies.register("pack")
class Pack(Turns):
    """Lanes, found by Algorithm 2.1, run side by side; within a lane, jobs go in order of arrival."""

    def place(self, job: Job, state: DeviceState) -> int | None:
        return state.layout.find(state.claim(job), job.ephemeral, state.running)


@iteration_policies.register("srtf")
class Srtf(Preempting):
    """The job with the shortest remaining time runs next. Preemption is free: paused jobs stay on the GPU."""

    def rank(self, job: Job, state: DeviceState) -> Rank:
        return (state.remaining(job), *super().rank(job, state))


@iteration_policies.register("priority")
class Priority(Preempting):
    """The most important job runs, from the next iteration boundary on; equals go by arrival."""

    def rank(self, job: Job, state: DeviceState) -> Rank:
        return (-job.priority, *super().rank(job, state))
