"""astrarium cluster events, astrarium cluster history, astrarium cluster accounting"""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from astrarium.cli.cluster.state import Where, somewhere
from astrarium.cli.options import Json
from astrarium.cli.output import emit
from astrarium.core.errors import AstrariumError, InputError

if TYPE_CHECKING:
    from astrarium.cluster.live.access import Past

LOOK = 0.3  # seconds between looks at events that are followed
OfApp = Annotated[str | None, typer.Option("--app", metavar="NAME", help="Of one app only.")]
OfTeam = Annotated[str | None, typer.Option("--team", metavar="TEAM", help="Of the apps of one team only.")]
Since = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="Not longer ago than this, such as 1h or 7d.")
]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on with what happens, until Ctrl-C.")]
EachJson = Annotated[bool, typer.Option("--json", help="Print a JSON object for each, one a line.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV with a header.")]
CsvFile = Annotated[
    str | None, typer.Option("--csv", metavar="FILE", help="Write CSV with a header; - is stdout.")
]
GroupedBy = Annotated[
    list[str] | None,
    typer.Option("--by", metavar="WHAT", help="team, app or day (UTC); repeat it. Else team and day."),
]
GPU_HOURS = ("leased_gpu_hours", "busy_gpu_hours", "idle_gpu_hours")


@somewhere
def events(
    where: Where,
    app: OfApp = None,
    team: OfTeam = None,
    since: Since = None,
    follow: Follow = False,
    json: EachJson = False,
) -> None:
    """Print what has happened, one line each."""
    from astrarium.cluster.live.wire.channel import WireError

    from_then = _wall(since)
    last = 0
    over = False
    while not over:
        try:
            rows = _asked(where, "events", team, after=last, since=from_then, app=app)
        except WireError:  # an arbiter that has left has told all in its folder
            if where.arbiter is not None or not follow:
                raise
            rows = []
        for row in rows:
            print(_as_json(row) if json else _line(row), flush=True)
        last = rows[-1]["id"] if rows else last
        over = not rows and not follow
        time.sleep(0 if rows or over else LOOK)


def _asked(where: Where, kind: Past, team: str | None = None, **wanted: Any) -> list[Any]:
    from astrarium.cluster.live.watching.history import PastQuery

    with where.reached() as source:
        return source.past(kind, PastQuery(teams=None if team is None else (team,), **wanted))


@somewhere
def history(
    where: Where, since: Since = None, team: OfTeam = None, json: Json = False, csv: AsCsv = False
) -> None:
    """Show apps that have ended, and what they used."""
    apps = _asked(where, "history", team, since=_wall(since))
    if csv:
        names = list(apps[0]) if apps else ["app"]
        _write_csv("-", names, ([app[name] for name in names] for app in apps))
        return
    emit(json, {"apps": apps}, [_ended(apps)], None)


@somewhere
def accounting(
    where: Where,
    by: GroupedBy = None,
    since: Since = None,
    csv: CsvFile = None,
    json: Json = False,
) -> None:
    """Add up GPU-hours and apps by team and day."""
    from astrarium.cluster.live.watching.history import COUNTS, By

    groups: Any = by or ["team", "day"]
    for group_name in groups:
        if group_name not in get_args(By):
            raise InputError("--by", group_name, "team, app or day")
    groups_used = _asked(where, "accounting", by=tuple(groups), since=_wall(since))
    names = [*groups, *GPU_HOURS, *COUNTS]
    rows = [[*group, *_hours(used), *used["counts"].values()] for group, used in groups_used]
    if csv is not None:
        _write_csv(csv, names, rows)
        return
    entries = [dict(zip(names, row, strict=True)) for row in rows]
    emit(json, {"accounting": entries}, [_table(names, rows)], None)


def _wall(since: str | None) -> int:
    """Return what the clock on the wall showed so long ago; 0 where all is wanted."""
    from astrarium.core.quantities import duration_in

    return 0 if since is None else time.time_ns() - duration_in("--since", since)


def _as_json(event: dict[str, Any]) -> str:
    import msgspec

    return msgspec.json.encode(event).decode()


def _line(event: dict[str, Any]) -> str:
    from astrarium.run.tables import ranges

    team = f" [{event['team']}]" if event["team"] else ""
    gpus = f" GPUs {ranges(event['gpus'])}" if event["gpus"] else ""
    why = f": {event['reason']}" if event["reason"] else ""
    return f"{_local(event['time'])}  {event['kind']:<15} {event['name']}{team}{gpus}{why}"


def _local(moment: str | None) -> str:
    return "" if moment is None else f"{datetime.fromisoformat(moment).astimezone():%Y-%m-%d %H:%M:%S}"


def _ended(apps: list[dict[str, Any]]) -> Any:
    titles = ("app", "team", "is", "submitted", "started", "ended")
    rows = []
    for one in apps:
        times = [_local(one[at]) for at in ("submitted", "started", "ended")]
        used = f"{one['waited_s']:.1f}", f"{one['gpu_hours']:.3f}", one["preemptions"], one["reason"]
        rows.append([one["app"], one["team"], one["outcome"], *times, *used])
    return _table([*titles, "waited s", "GPU-h", "preempted", "reason"], rows)


def _table(titles: Sequence[str], rows: Iterable[Sequence[Any]]) -> Any:
    from astrarium.run.tables import as_it_is, plain_table

    table = plain_table(*(title.replace("_gpu_hours", " GPU-h") for title in titles))
    for row in rows:
        table.add_row(*(as_it_is(str(cell)) for cell in row))
    return table


def _hours(used: dict[str, Any]) -> list[str]:
    leased = used["leased"]
    busy = used["busy"]
    return [f"{part / 3.6e12:.6f}" for part in (leased, busy, leased - busy)]


def _write_csv(target: str, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    from astrarium.run.report import write_csv

    if target == "-":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerows([names, *rows])
        return
    try:
        write_csv(Path(target), names, rows)
    except OSError as error:
        raise AstrariumError(f"--csv {target}: {error.strerror}") from error
