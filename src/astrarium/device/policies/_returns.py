"""Jobs that come straight back: a loop that has ended an iteration wants the next one a moment later.

Live, the end is heard first. Whoever gave the lane away at once would take turns, and shortest first, most
important first or least served first would be so in name only. So that moment is waited for. A job that was
not back by then reads its data, and others run meanwhile: it is waited for again after one turn, then after
two, four and so on. What it takes while others run says little, since they share one interpreter with it; but
if it is soon back even so, it is waited for as before.
"""

from __future__ import annotations

from collections.abc import Sequence

from astrarium.core.units import MILLISECOND, Time
from astrarium.device.events import Event, IterationFinished, IterationWanted
from astrarium.device.state import DeviceState

GRACE: Time = MILLISECOND
RARELY = 64  # turns: a job that is always late costs the others one moment in so many


class Returns:
    def __init__(self) -> None:
        self._ended: dict[int, Time] = {}  # when those who are not back yet ended an iteration
        self._pass: dict[int, int] = {}  # turns after which a job that was late is not waited for
        self._late: dict[int, int] = {}  # how many those were at first

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
