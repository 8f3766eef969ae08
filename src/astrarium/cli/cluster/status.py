"""astrarium cluster status, astrarium cluster logs"""

from __future__ import annotations

import re
import shutil
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from astrarium.cli.cluster.state import App, State, disk_errors, state_folder
from astrarium.cli.options import Json
from astrarium.cli.output import emit
from astrarium.core.errors import InputError, did_you_mean
from astrarium.core.units import FOREVER

AppName = Annotated[str | None, typer.Option("--app", metavar="NAME", help="All about one app.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on with what it writes, until it ends.")]
SILENT = 10  # seconds after which an arbiter is taken to be gone
LOOK = 0.2  # seconds between looks at logs that are followed


def status(state: State = None, app: AppName = None, json: Json = False) -> None:
    """Show apps, who holds what until when, why others wait, and machines."""
    home = state_folder(state)
    found = read(home)
    if app is None:
        emit(json, found, told(found), None)
        return
    story = about(home, found, app)
    emit(json, story, _about(story), None)


def about(home: Path, found: dict[str, Any], name: str) -> dict[str, Any]:
    """One app: every decision with its reason, and its runs."""
    from astrarium.cluster.live.store import rows

    _check_app("--app", name, [each["app"] for each in found["apps"]])
    of = "WHERE app = (SELECT id FROM apps WHERE name = ?)"
    decisions = f"SELECT at, what, gpus, until, why FROM decisions {of} ORDER BY n"
    runs = f"SELECT job, run, gpus, ordered, ended, outcome, error FROM runs {of} ORDER BY ordered"
    with _reading(home) as db:
        one = next(each for each in found["apps"] if each["app"] == name)
        return {"app": one, "decisions": rows(db, decisions, name), "runs": rows(db, runs, name)}


def _check_app(field: str, name: str, names: list[str]) -> None:
    if name not in names:
        latest = ", ".join(names[-20:]) or "there is none yet"
        raise InputError(field, name, f"an app of this cluster, such as {latest}{did_you_mean(names, name)}")


def logs(app: App, follow: Follow = False, state: State = None) -> None:
    """Print what the jobs of an app have written, run after run."""
    printed: dict[Path, int] = {}
    while True:
        folder, ended = _logs_of(state_folder(state), app)
        _print_new(folder, printed)
        if ended or not follow:
            break
        time.sleep(LOOK)
    if not printed:
        print(f"{app}: it has written nothing yet", file=sys.stderr)


def _logs_of(home: Path, name: str) -> tuple[Path, bool]:
    """The folder of an app, and whether it has ended: then all that it wrote is there."""
    from astrarium.cluster.live.session import job_folder

    with _reading(home) as db:
        found = db.execute("SELECT name, id, ended IS NOT NULL FROM apps ORDER BY id")
        apps = {each: (number, bool(ended)) for each, number, ended in found}
        jobs = db.execute("SELECT value FROM meta WHERE key = 'jobs'").fetchone()
    _check_app("APP", name, list(apps))
    number, ended = apps[name]
    return job_folder(Path(jobs[0]) if jobs and jobs[0] else home, number, name, 0).parent, ended


def _print_new(folder: Path, printed: dict[Path, int]) -> None:
    """Print what each log has beyond the bytes that were *printed*; where there are several, say which."""
    found = list(folder.glob("job-*/run-*/part-*/log-*.txt"))
    for path in sorted(found, key=lambda each: [int(number) for number in re.findall(r"\d+", str(each))]):
        if path.stat().st_size > printed.get(path, 0):
            if len(found) > 1:
                print(f"==> {path.relative_to(folder)} <==", flush=True)
            with path.open("rb") as log:
                log.seek(printed.get(path, 0))
                shutil.copyfileobj(log, sys.stdout.buffer)
                printed[path] = log.tell()
            sys.stdout.flush()


@contextmanager
def _reading(home: Path) -> Iterator[sqlite3.Connection]:
    """Who asks need not be allowed to write."""
    from astrarium.cluster.live.store import FILE, connected

    with disk_errors(home), closing(connected(home / FILE, read_only=True)) as db:
        yield db


def _about(story: dict[str, Any]) -> Iterator[Any]:
    from astrarium.run.report import as_it_is, plain_table

    yield _apps([story["app"]])
    table = plain_table("at s", "what", "GPUs", "until s", "why")
    for each in story["decisions"]:
        table.add_row(_at(each["at"]), each["what"], each["gpus"], _at(each["until"]), as_it_is(each["why"]))
    yield table
    table = plain_table("job", "run", "GPUs", "ordered s", "ended s", "is", "error")
    for each in story["runs"]:
        cells = (each["gpus"], _at(each["ordered"]), _at(each["ended"]), each["outcome"])
        table.add_row(str(each["job"]), str(each["run"]), *cells, as_it_is(each["error"] or ""))
    yield table


def _at(time: int | None) -> str:
    return "" if time is None else "its end" if time >= FOREVER else f"{time / 1e9:.1f}"


def read(home: Path) -> dict[str, Any]:
    """As the arbiter last wrote it, and how long ago that was."""
    import msgspec

    with _reading(home) as db:
        row = db.execute("SELECT value FROM meta WHERE key = 'status'").fetchone()
        waiting = db.execute("SELECT count(*) FROM inbox WHERE answer IS NULL").fetchone()[0]
    if row is None:
        raise InputError("--state", str(home), "a cluster that has begun")
    found: dict[str, Any] = msgspec.json.decode(row[0])
    ago = max(0.0, (time.time_ns() - found.pop("wall")) / 1e9)
    return {**found, "arbiter": found["arbiter"] and ago < SILENT, "seen_s_ago": ago, "unread": waiting}


def told(found: dict[str, Any]) -> Iterator[Any]:
    from rich.text import Text

    alive = "running" if found["arbiter"] else "not running"
    head = f"arbiter {found['epoch']} is {alive}; {found['free']} of {found['gpus']} GPUs are free"
    yield Text(head, no_wrap=True)
    if found.get("unread"):
        yield Text(f"{found['unread']} submitted or withdrawn, and not yet read by the arbiter", no_wrap=True)
    yield _apps(found["apps"])
    yield _machines(found["machines"])
    yield from _health(found)
    if found.get("learnt"):
        yield _learnt(found["learnt"])


def _apps(apps: list[dict[str, Any]]) -> Any:
    from astrarium.run.report import as_it_is, plain_table, ranges

    table = plain_table("app", "is", "GPUs", "until s", "done", "took s", "waited s", "GPU-s", "rho", "why")
    for app in apps:
        until = "" if app["until_s"] is None else f"{app['until_s']:.1f}"
        rho = "" if app["rho"] is None else f"{app['rho']:.2f}"
        table.add_row(
            as_it_is(app["app"]), _is(app), ranges(app["gpus"]), until, f"{app['done']:.0%}",
            f"{app['took_s']:.1f}", f"{app['waited_s']:.1f}", f"{app['gpu_s']:.1f}", rho,
            as_it_is(app["why"] or app["reason"]),
        )  # fmt: skip
    return table


def _is(app: dict[str, Any]) -> str:
    if app["outcome"] != "open":
        return str(app["outcome"])
    return "running" if app["jobs_running"] else "waiting"


def _learnt(slowdowns: list[dict[str, Any]]) -> Any:
    from astrarium.run.report import as_it_is, plain_table

    table = plain_table("model", "network", "apart over a", "slower by")
    for one in slowdowns:
        names = as_it_is(one["model"] or "-"), as_it_is(one["network"] or "-")
        table.add_row(*names, one["spread"], f"{one['slowdown']:.2f}")
    return table


def _health(found: dict[str, Any]) -> Iterator[Any]:
    from rich.text import Text

    from astrarium.run.report import as_it_is, plain_table

    if found.get("failed"):
        table = plain_table("GPU", "machine:GPU", "out of use since s", "why", "")
        for one in found["failed"]:
            place, then = f"{one['machine']}:{one['number']}", "until it is well" if one["retrying"] else ""
            cells = as_it_is(place), f"{one['since_s']:.1f}", as_it_is(one["why"])
            table.add_row(str(one["gpu"]), *cells, then)
        yield table
    if found.get("unwatched"):
        some = len(found["unwatched"]) < len(found["machines"])
        where = f" on {', '.join(found['unwatched'])}" if some else ""
        yield Text(f"the health of GPUs is not watched{where}", no_wrap=True)


def _machines(machines: list[dict[str, Any]]) -> Any:
    from astrarium.run.report import as_it_is, plain_table, ranges

    table = plain_table("machine", "name", "GPUs", "held by")
    for one in machines:
        name, holders = as_it_is(one["name"]), as_it_is(", ".join(dict.fromkeys(one["held"].values())))
        table.add_row(str(one["machine"]), name, ranges(one["gpus"]), holders)
    return table
