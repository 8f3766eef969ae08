"""astrarium cluster status, astrarium cluster logs"""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from astrarium.cli.cluster.state import App, State, reading, state_folder
from astrarium.cli.options import Json
from astrarium.cli.output import emit
from astrarium.core.errors import InputError, did_you_mean
from astrarium.core.units import FOREVER

AppName = Annotated[str | None, typer.Option("--app", metavar="NAME", help="All about one app.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on with what it writes, until it ends.")]
Watch = Annotated[bool, typer.Option("--watch", help="Show it again every second, until Ctrl-C.")]
EVERY = 1.0  # seconds between two looks of --watch
LATEST = 20  # apps that have ended, and are shown: `history` has all
SILENT = 10  # seconds after which an arbiter is taken to be gone
LOOK = 0.2  # seconds between looks at logs that are followed


def status(state: State = None, app: AppName = None, json: Json = False, watch: Watch = False) -> None:
    """Show who holds what, and why others wait."""
    home = state_folder(state)
    if watch:
        _watch(home, app, json)
        return
    found = read(home)
    if app is None:
        emit(json, found, told(found), None)
        return
    story = about(home, found, app)
    emit(json, story, _about(story), None)


def _watch(home: Path, app: str | None, json: bool) -> None:
    """Show it again every second: in place on a terminal, elsewhere one after another."""
    from rich.console import Group
    from rich.live import Live

    if json or not sys.stdout.isatty():
        while True:
            status(home, app, json)
            sys.stdout.flush()
            time.sleep(EVERY)
    with Live(auto_refresh=False) as live:
        while True:
            found = read(home)
            live.update(
                Group(*(told(found) if app is None else _about(about(home, found, app)))), refresh=True
            )
            time.sleep(EVERY)


def about(home: Path, found: dict[str, Any], name: str) -> dict[str, Any]:
    """One app: every decision with its reason, and its runs."""
    from astrarium.cluster.live.store import rows

    _check_app("--app", name, [each["app"] for each in found["apps"]])
    of = "WHERE app = (SELECT id FROM apps WHERE name = ?)"
    decisions = f"SELECT at, what, gpus, until, why FROM decisions {of} ORDER BY n"
    runs = f"SELECT job, run, gpus, ordered, ended, outcome, error FROM runs {of} ORDER BY ordered"
    with reading(home) as db:
        one = next(each for each in found["apps"] if each["app"] == name)
        return {
            "now_s": found["now_s"],
            "app": one,
            "decisions": rows(db, decisions, name),
            "runs": rows(db, runs, name),
        }


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

    with reading(home) as db:
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


def _about(story: dict[str, Any]) -> Iterator[Any]:
    from astrarium.run.report import as_it_is, plain_table

    yield _apps([story["app"]], story["now_s"])
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

    with reading(home) as db:
        meta = dict(db.execute("SELECT key, value FROM meta WHERE key IN ('status', 'hooks')"))
        waiting = db.execute("SELECT count(*) FROM inbox WHERE answer IS NULL").fetchone()[0]
    if "status" not in meta:
        raise InputError("--state", str(home), "a cluster that has begun")
    found: dict[str, Any] = msgspec.json.decode(meta["status"])
    found["hooks"] = list(msgspec.json.decode(meta.get("hooks") or "{}").values())
    ago = max(0.0, (time.time_ns() - found.pop("wall")) / 1e9)
    return {**found, "arbiter": found["arbiter"] and ago < SILENT, "seen_s_ago": ago, "unread": waiting}


def told(found: dict[str, Any]) -> Iterator[Any]:
    from rich.text import Text

    alive = "running" if found["arbiter"] else "not running"
    head = f"arbiter {found['epoch']} is {alive}; {found['free']} of {found['gpus']} GPUs are free"
    yield Text(head, no_wrap=True)
    if found.get("unread"):
        yield Text(f"{found['unread']} submitted or withdrawn, and not yet read by the arbiter", no_wrap=True)
    for hook in found.get("hooks", []):
        counts = ", ".join(f"{hook[what]} {what}" for what in ("delivered", "failed", "dropped"))
        error = f"; last error: {hook['error']}" if hook["error"] else ""
        yield Text(f"hook {hook['name']}: {counts}{error}", no_wrap=True)
    ends = sorted(app["arrived_s"] + app["took_s"] for app in found["apps"] if app["outcome"] != "open")
    if len(ends) > LATEST:
        more = f"{len(ends) - LATEST} more have ended: `astrarium cluster history` shows them"
        yield Text(more, no_wrap=True)
    from_then = ends[-LATEST:][0] if ends else 0.0
    late = (a for a in found["apps"] if a["outcome"] == "open" or a["arrived_s"] + a["took_s"] >= from_then)
    yield _apps(list(late), found["now_s"])
    yield _machines(found["machines"])
    yield from _health(found)
    if found.get("learnt"):
        yield _learnt(found["learnt"])


def _apps(apps: list[dict[str, Any]], now: float) -> Any:
    from astrarium.run.report import as_it_is, plain_table, ranges

    titles = ("is", "GPUs", "until s", "starts", "done", "took s", "waited s", "GPU-s", "rho", "why")
    table = plain_table("app", *titles)
    for app in apps:
        until = "" if app["until_s"] is None else f"{app['until_s']:.1f}"
        rho = "" if app["rho"] is None else f"{app['rho']:.2f}"
        table.add_row(
            as_it_is(app["app"]), _is(app), ranges(app["gpus"]), until, _starts(app, now),
            f"{app['done']:.0%}", f"{app['took_s']:.1f}", f"{app['waited_s']:.1f}", f"{app['gpu_s']:.1f}",
            rho, as_it_is(app["why"] or app["reason"]),
        )  # fmt: skip
    return table


def _starts(app: dict[str, Any], now: float) -> str:
    """Return in how long it will start; ~ where only leases were looked at, > where it will take longer."""
    from astrarium.run.report import moment

    at = app.get("starts_s")
    if at is None:
        return ""
    sign = {"leases": "~", "not before": ">"}.get(app["starts_how"], "")
    return f"in {sign}{moment(round(max(0.0, at - now)) * 1_000_000_000)}"


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
