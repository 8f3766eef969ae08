"""When reservations are: a time from the start of the run, or what the calendar says.

`30min` counts from the start. `2026-11-23 9:00` is once, and `monday 9:00` every week; both need a clock: the
one of the arbiter's machine, or of a simulated run what its file says (`sharing.starts`).
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple

from astrarium.core.errors import InputError
from astrarium.core.quantities import SECOND, Time, read_duration

DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
WEEK = timedelta(days=7)
FORM = "a time from the start such as 30min, a date such as 2026-11-23 9:00, or a day such as monday 9:00"
_DATE = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d?):(\d\d)(?::(\d\d))?")
_DAY = re.compile(rf"({'|'.join(DAYS)}) (\d\d?):(\d\d)")


class Moment(NamedTuple):
    """A moment as written: *after* the start of the run, a *date*, or a day of the week with a *clock*."""

    text: str
    after: Time | None = None
    date: datetime | None = None
    day: int = -1
    clock: timedelta = timedelta()


def read_moment(raw: object, field: str = "") -> Moment:
    """Read a moment; YAML may have taken it for a date already."""
    if isinstance(raw, date):
        midnight = datetime(raw.year, raw.month, raw.day)
        return Moment(str(raw), date=raw if isinstance(raw, datetime) else midnight)
    text = str(raw).strip().lower()
    try:
        if match := _DATE.fullmatch(text.replace("t", " ")):
            day, hour, minute, second = match.groups()
            return Moment(text, date=datetime.fromisoformat(f"{day} {hour:0>2}:{minute}:{second or '00'}"))
        if (match := _DAY.fullmatch(text)) and int(match[2]) <= 24 and int(match[3]) <= 59:
            clock = timedelta(hours=int(match[2]), minutes=int(match[3]))
            return Moment(text, day=DAYS.index(match[1]), clock=clock)
        return Moment(text, after=read_duration(raw))
    except ValueError:
        raise ValueError(FORM) from None


class Calendar(NamedTuple):
    """The wall clock, in nanoseconds since 1970, when the run started (*origin*) and *now*. *local*: dates
    are those of this machine's time zone; otherwise of none."""

    origin: Time
    now: Time
    local: bool = True

    @classmethod
    def simulated(cls, starts: datetime) -> Calendar:
        at = round(starts.replace(tzinfo=UTC).timestamp()) * SECOND
        return cls(at, at, local=False)

    def instant(self, moment: Moment) -> Time:
        """Return the instant of a moment in the run; of a day of the week, the last one until now."""
        if moment.after is not None:
            return moment.after
        at = moment.date or self._last(moment)
        return round((at if self.local else at.replace(tzinfo=UTC)).timestamp()) * SECOND - self.origin

    def _last(self, moment: Moment) -> datetime:
        now = datetime.fromtimestamp(self.now / SECOND, None if self.local else UTC).replace(tzinfo=None)
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        at = midnight + timedelta(days=moment.day - now.weekday()) + moment.clock
        return at if at <= now else at - WEEK


def instant(moment: Moment, calendar: Calendar | None, field: str) -> Time:
    """Return the instant of a moment in a run that has a calendar, or none."""
    if calendar is not None:
        return calendar.instant(moment)
    if moment.after is None:
        expected = "a time from the start such as 30min: to simulate dates, say at which one it starts"
        raise InputError(field, moment.text, f"{expected} (sharing.starts: 2026-11-23 8:00)")
    return moment.after
