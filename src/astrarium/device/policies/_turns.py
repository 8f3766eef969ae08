"""What iteration policies share: let in whom there is room for, then give every free lane its next turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from astrarium.core.units import Time
from astrarium.device.actions import NEW_LANE, Action, Admit, Refuse, RunIteration
from astrarium.device.events import Event
from astrarium.device.jobs import Job
from astrarium.device.state import DeviceState

Rank = tuple[float, ...]


class Turns:
    """A subclass says who comes first (`rank`, the smaller the sooner) and where a job may go (`place`)."""

    def decide(self, now: Time, events: Sequence[Event], state: DeviceState) -> Iterator[Action]:
        yield from self._refuse(state)
        yield from self._let_in(state)
        for lane in list(state.layout.lanes):
            ready = state.ready.intersection(lane.jobs)
            if ready and state.idle(lane.id):
                yield RunIteration(min(ready, key=lambda job: self.rank(state.admitted[job], state)))

    def rank(self, job: Job, state: DeviceState) -> Rank:
        """In order of arrival."""
        return (state.row(job.id).arrived, job.id)

    def place(self, job: Job, state: DeviceState) -> int | None:
        """A lane for a job that waits, NEW_LANE, or None."""
        raise NotImplementedError

    def _refuse(self, state: DeviceState) -> Iterator[Action]:
        capacity = state.layout.capacity
        for job in list(state.waiting.values()):
            needed = job.persistent + job.ephemeral
            if needed > capacity:
                yield Refuse(job.id, f"it needs {needed} bytes, and the GPU has {capacity}")

    def _let_in(self, state: DeviceState) -> Iterator[Action]:
        """Whoever fits, in order of rank: those who do not fit yet hold up nobody."""
        for job in sorted(state.waiting.values(), key=lambda job: self.rank(job, state)):
            lane = self.place(job, state)
            if lane is not None:
                yield Admit(job.id, lane)


class OneLane(Turns):
    """All jobs take turns in a single lane, as large as the largest of them needs."""

    def place(self, job: Job, state: DeviceState) -> int | None:
        layout = state.layout
        if not layout.lanes:
            return NEW_LANE if job.persistent + job.ephemeral <= layout.room else None
        lane = layout.lanes[0]
        return lane.id if layout.fits(lane, job.persistent, job.ephemeral, state.running) else None
