"""Jobs that come straight back: a loop that has ended an iteration wants the next one a moment later.

Live, the end is heard first. Whoever gave the lane away at once would take turns, and shortest first, most
important first or least served first would be so in name only. So that moment is waited for, but not of a job
that took longer the last time: it reads its data, and others run meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

from astrarium.core.units import MILLISECOND, Time
from astrarium.device.events import Event, IterationFinished, IterationWanted
from astrarium.device.state import DeviceState

GRACE: Time = MILLISECOND


class Returns:
    def __init__(self) -> None:
        self._ended: dict[int, Time] = {}  # when those who are not back yet ended an iteration
        self._slow: set[int] = set()  # took longer the last time

    def hear(self, now: Time, events: Sequence[Event]) -> None:
        for event in events:
            if type(event) is IterationFinished:
                self._ended[event.job] = now
            elif type(event) is IterationWanted and event.job in self._ended:
                self._came(event.job, now - self._ended.pop(event.job))

    def awaited(self, now: Time, state: DeviceState) -> dict[int, Time]:
        """Whom to wait for, and until when."""
        if not self._ended:
            return {}
        self._ended = {
            job: at for job, at in self._ended.items() if job in state.admitted and job not in state.ready
        }
        soon = {job: at + GRACE for job, at in self._ended.items() if job not in self._slow}
        return {job: until for job, until in soon.items() if until > now}

    def _came(self, job: int, gap: Time) -> None:
        if gap > GRACE:
            self._slow.add(job)
        else:
            self._slow.discard(job)
