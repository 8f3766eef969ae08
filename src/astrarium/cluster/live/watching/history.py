"""What a live cluster has done is read from its store: events, apps that have ended, and GPU time by team.

Instants of the store are nanoseconds since the first arbiter; `WallClock` says what the clock on the wall
showed then. What is still open counts until the arbiter last wrote its status.
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, NamedTuple, get_args

import msgspec

from astrarium.cluster.live.store import rows
from astrarium.core.errors import InputError
from astrarium.core.quantities import SECOND, Time

By = Literal["team", "app", "day"]
Whole = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]  # what SQLite can hold
HOUR = 3600 * SECOND
ENDED = ("finished", "failed", "withdrawn")
COUNTS = ("submitted", *ENDED, "preempted")
MOST_EVENTS = 10_000  # at once
PAST = f"""SELECT apps.*, held.started, held.leased, stops.preemptions FROM apps
  LEFT JOIN (SELECT app, min(since) AS started, sum(max(0, coalesce(ended, ?) - since)) AS leased
             FROM leases GROUP BY app) AS held ON held.app = apps.id
  LEFT JOIN (SELECT app, count(*) AS preemptions FROM events WHERE kind = 'preempted' GROUP BY app) AS stops
             ON stops.app = apps.id
  WHERE apps.outcome IN {ENDED} ORDER BY apps.ended, apps.id"""


class PastQuery(msgspec.Struct, frozen=True):
    """Which part of the past is wanted: events with a greater number than *after*; nothing before *since* on
    the wall; of one *app*; of these *teams*, or of all apps; added up *by* these."""

    after: Whole = 0
    since: Whole = 0
    app: str | None = None
    teams: tuple[str, ...] | None = None
    by: tuple[By, ...] = ("team", "day")

    def __post_init__(self) -> None:
        if len(self.by) > len(get_args(By)):
            raise InputError("by", len(self.by), f"at most {len(get_args(By))} of {', '.join(get_args(By))}")


def past(db: sqlite3.Connection, kind: str, query: PastQuery) -> list[Any]:
    """Return what is asked for as plain values; *kind*: events, history or accounting."""
    if kind == "events":
        return events(db, query.after, query.since, query.app, query.teams)
    if kind == "history":
        return history(db, query.since, query.teams)
    groups = accounting(db, query.by, query.since, query.teams)
    return [(group, msgspec.to_builtins(used)) for group, used in groups.items()]


class WallClock:
    """The clock on the wall, from pairs of an instant and what it showed then; it may have been set."""

    def __init__(self, anchors: Sequence[tuple[Time, Time]]) -> None:
        self._anchors = sorted(anchors) or [(0, 0)]

    def wall(self, at: Time) -> Time:
        began, wall = self._anchors[max(0, bisect_right(self._anchors, (at, 1 << 63)) - 1)]
        return wall + at - began

    def days(self, start: Time, end: Time) -> Iterator[tuple[str, Time, Time]]:
        """Cut a time into parts of one day (of UTC) each."""
        while start < end:
            day = moment(self.wall(start)).replace(hour=0, minute=0, second=0, microsecond=0)
            midnight = round((day + timedelta(days=1)).timestamp()) * SECOND
            set_next = (at for at, _ in self._anchors if at > start)
            cut = min(end, start + midnight - self.wall(start), next(set_next, end))
            yield day.date().isoformat(), start, cut
            start = cut


def moment(wall: Time) -> datetime:
    return datetime.fromtimestamp(wall // SECOND, UTC) + timedelta(microseconds=wall % SECOND // 1000)


def wall_clock(db: sqlite3.Connection) -> WallClock:
    """Return the clock of a store; one that an earlier version has begun knows when it began."""
    origin = db.execute("SELECT value FROM meta WHERE key = 'origin'").fetchone()
    anchors = [(0, int(origin[0]))] if origin else []
    return WallClock(anchors + db.execute("SELECT at, wall FROM clock ORDER BY at").fetchall())


def last_instant(db: sqlite3.Connection) -> Time:
    """Return until when the arbiter has told what is open."""
    row = db.execute("SELECT value FROM meta WHERE key = 'status'").fetchone()
    step = db.execute("SELECT max(now) FROM steps").fetchone()[0] or 0
    return max(step, round(msgspec.json.decode(row[0])["now_s"] * SECOND)) if row else step


def events(
    db: sqlite3.Connection,
    after: int = 0,
    since: Time = 0,
    app: str | None = None,
    teams: Sequence[str] | None = None,
) -> list[dict[str, Any]]:
    """Return the first MOST_EVENTS with a greater number than *after*, and not before *since* on the wall."""
    wanted = None if teams is None else msgspec.json.encode(teams).decode()
    rows_found = rows(
        db,
        """SELECT * FROM events WHERE id > ? AND wall >= ? AND (? IS NULL OR name = ? AND
           (app IS NOT NULL OR kind = 'refused')) AND
           (? IS NULL OR team IN (SELECT value FROM json_each(?))) ORDER BY id LIMIT ?""",
        *(after, since, app, app, wanted, wanted, MOST_EVENTS),
    )
    for row in rows_found:
        row["gpus"], row["time"] = msgspec.json.decode(row["gpus"]), moment(row["wall"]).isoformat()
    return rows_found


def history(
    db: sqlite3.Connection, since: Time = 0, teams: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Return apps that have ended, not before *since* on the wall, in the order in which they did."""
    clock = wall_clock(db)
    apps = list[dict[str, Any]]()
    for row in rows(db, PAST, last_instant(db)):
        if clock.wall(row["ended"]) >= since and (teams is None or (row["team"] or "") in teams):
            apps.append(_ended_app(row, clock))
    return apps


def _ended_app(row: dict[str, Any], clock: WallClock) -> dict[str, Any]:
    started = row["started"]
    return {
        "app": row["name"],
        "team": row["team"] or "",
        "outcome": row["outcome"],
        "submitted": moment(clock.wall(row["submitted"])).isoformat(),
        "started": None if started is None else moment(clock.wall(started)).isoformat(),
        "ended": moment(clock.wall(row["ended"])).isoformat(),
        "waited_s": ((row["ended"] if started is None else started) - row["submitted"]) / SECOND,
        "took_s": (row["ended"] - row["submitted"]) / SECOND,
        "gpu_hours": (row["leased"] or 0) / HOUR,
        "preemptions": row["preemptions"] or 0,
        "reason": row["reason"] or "",
    }


class Usage(msgspec.Struct):
    """What one group of apps had. *leased* and *busy* in GPU nanoseconds; *counts* of what became of apps."""

    leased: Time = 0
    busy: Time = 0
    counts: dict[str, int] = msgspec.field(default_factory=lambda: dict.fromkeys(COUNTS, 0))


class Span(NamedTuple):
    """A time in which an app had a GPU, or a process of it was up there."""

    app: int
    gpu: int
    start: Time
    end: Time


Group = tuple[str, ...]
Named = dict[int, tuple[str, str]]  # the name and the team of each app


def usage(
    leases: Iterable[Span], runs: Iterable[Span], named: Named, clock: WallClock, by: Sequence[By]
) -> dict[Group, Usage]:
    """Return GPU time by groups; it is *busy* while a process of the app that has the lease is up."""
    groups = dict[Group, Usage]()
    up = dict[tuple[int, int], list[Span]]()
    for run in runs:
        up.setdefault((run.app, run.gpu), []).append(run)
    for lease in leases:
        mine = up.get((lease.app, lease.gpu), ())
        for day, start, end in clock.days(lease.start, lease.end):
            group = groups.setdefault(_group(named[lease.app], day, by), Usage())
            group.leased += end - start
            group.busy += sum(max(0, min(end, run.end) - max(start, run.start)) for run in mine)
    return groups


def _group(named: tuple[str, str], day: str, by: Sequence[By]) -> Group:
    parts = {"app": named[0], "team": named[1], "day": day}
    return tuple(parts[kind] for kind in by)


def accounting(
    db: sqlite3.Connection, by: Sequence[By], since: Time = 0, teams: Sequence[str] | None = None
) -> dict[Group, Usage]:
    """Return what each group of apps had and what became of them, not before *since* on the wall."""
    clock = wall_clock(db)
    now = last_instant(db)
    apps = db.execute("SELECT id, name, coalesce(team, '') FROM apps")
    named: Named = {n: (name, team) for n, name, team in apps if teams is None or team in teams}
    held = db.execute("SELECT app, gpu, since, coalesce(ended, ?) FROM leases", (now,))
    leases = list(_clipped((Span(*row) for row in held if row[0] in named), clock, since))
    groups = usage(leases, _runs(db, now), named, clock, by)
    for app, what, at in db.execute(
        f"""SELECT id, 'submitted', submitted FROM apps UNION ALL
            SELECT id, outcome, ended FROM apps WHERE outcome IN {ENDED} UNION ALL
            SELECT app, kind, at FROM events WHERE kind = 'preempted'"""
    ):
        if app in named and clock.wall(at) >= since:
            day = moment(clock.wall(at)).date().isoformat()
            groups.setdefault(_group(named[app], day, by), Usage()).counts[what] += 1
    return dict(sorted(groups.items()))


def _runs(db: sqlite3.Connection, now: Time) -> Iterator[Span]:
    """Yield runs, GPU by GPU. One that no look has found alive was up for less than the time between two."""
    query = "SELECT app, gpus, coalesce(began, ended), coalesce(ended, ?) FROM runs"
    for app, gpus, start, end in db.execute(query, (now,)):
        for gpu in msgspec.json.decode(gpus) if start is not None else ():
            yield Span(app, gpu, start, end)


def _clipped(spans: Iterable[Span], clock: WallClock, since: Time) -> Iterator[Span]:
    for span in spans:
        start = max(span.start, span.start + since - clock.wall(span.start))
        if start < span.end:
            yield span._replace(start=start)
