"""astrarium cluster status, astrarium cluster logs"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from astrarium.cli.cluster.state import App, Where, somewhere
from astrarium.cli.options import Json
from astrarium.cli.output import emit
from astrarium.core.quantities import FOREVER

if TYPE_CHECKING:
    from astrarium.cluster.live.backends.hosts.messages import LogPiece
    from astrarium.cluster.live.service.state_folder import Source

AppName = Annotated[str | None, typer.Option("--app", metavar="NAME", help="All about one app.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on with what it writes, until it ends.")]
Watch = Annotated[bool, typer.Option("--watch", help="Show it again every second, until Ctrl-C.")]
EVERY = 1.0  # seconds between two looks of --watch
LATEST = 20  # apps that have ended, and are shown: `history` has all
SILENT = 10  # seconds after which an arbiter is taken to be gone
LOOK = 0.2  # seconds between looks at logs that are followed


@somewhere
def status(where: Where, app: AppName = None, json: Json = False, watch: Watch = False) -> None:
    """Show who holds what, and why others wait."""
    if watch:
        _watch(where, app, json)
    else:
        shown = _look(where, app)
        emit(json, shown, _shown(shown), None)


def _look(where: Where, app: str | None) -> dict[str, Any]:
    """Return the status, or all about one app."""
    with where.reached() as source:
        seen = read(source)
        return seen if app is None else about(source, seen, app)


def _shown(seen: dict[str, Any]) -> Iterator[Any]:
    return overview(seen) if "apps" in seen else _about(seen)


def _watch(where: Where, app: str | None, json: bool) -> None:
    """Show it again every second: in place on a terminal, elsewhere one after another."""
    from rich.console import Group
    from rich.live import Live

    if json or not sys.stdout.isatty():
        for shown in _looks(where, app):
            emit(json, shown, _shown(shown), None)
            sys.stdout.flush()
    with Live(auto_refresh=False) as live:
        for shown in _looks(where, app):
            live.update(Group(*_shown(shown)), refresh=True)


def _looks(where: Where, app: str | None) -> Iterator[dict[str, Any]]:
    from astrarium.cluster.live.wire.channel import WireError

    while True:
        try:
            yield _look(where, app)
        except WireError:  # an arbiter that has left has told all in its folder
            if where.arbiter is not None:
                raise
        time.sleep(EVERY)


def about(source: Source, seen: dict[str, Any], name: str) -> dict[str, Any]:
    """Return one app's story: every decision with its reason, and its runs."""
    from astrarium.cluster.live.service.state_folder import check_app

    check_app("--app", name, [entry["app"] for entry in seen["apps"]])
    one = next(entry for entry in seen["apps"] if entry["app"] == name)
    return {"now_s": seen["now_s"], "app": one, **source.story(name)}


@somewhere
def logs(where: Where, app: App, follow: Follow = False) -> None:
    """Print what the jobs of an app have written, run after run."""
    from astrarium.cluster.live.wire.channel import WireError

    printed = dict[str, int]()
    ended = False
    while not ended:
        with where.reached() as source:
            try:
                head, pieces = source.logs(app, printed)
                _print(pieces, printed, head.several)
                ended = head.ended or not follow
            except WireError:  # an arbiter that has left has told all in its folder
                if where.arbiter is not None:
                    raise
        time.sleep(0 if ended else LOOK)
    if not printed:
        print(f"{app}: it has written nothing yet", file=sys.stderr)


def _print(pieces: Iterator[LogPiece], printed: dict[str, int], several: bool) -> None:
    """Print what is new in each log; where there are several, say which."""
    last = ""
    for piece in pieces:
        if several and piece.path != last:
            print(f"==> {piece.path} <==", flush=True)
        last = piece.path
        printed[piece.path] = piece.offset + len(piece.body)
        sys.stdout.buffer.write(piece.body)
        sys.stdout.flush()


def _about(story: dict[str, Any]) -> Iterator[Any]:
    from astrarium.run.tables import as_it_is, plain_table

    yield _apps([story["app"]], story["now_s"])
    table = plain_table("at s", "what", "GPUs", "until s", "why")
    for decision in story["decisions"]:
        table.add_row(
            _at(decision["at"]),
            decision["what"],
            decision["gpus"],
            _at(decision["until"]),
            as_it_is(decision["why"]),
        )
    yield table
    table = plain_table("job", "run", "GPUs", "ordered s", "ended s", "is", "error")
    for run in story["runs"]:
        cells = (run["gpus"], _at(run["ordered"]), _at(run["ended"]), run["outcome"])
        table.add_row(str(run["job"]), str(run["run"]), *cells, as_it_is(run["error"] or ""))
    yield table


def _at(time: int | None) -> str:
    return "" if time is None else "its end" if time >= FOREVER else f"{time / 1e9:.1f}"


def read(source: Source) -> dict[str, Any]:
    """Return the status that the arbiter wrote last, and how long ago that was."""
    answer = source.status()
    seen: dict[str, Any] = {**answer["status"], "hooks": answer["hooks"]}
    ago = max(0.0, (time.time_ns() - seen.pop("wall")) / 1e9)
    alive = seen["arbiter"] and ago < SILENT
    return {**seen, "arbiter": alive, "seen_s_ago": ago, "unread": answer["unread"]}


def overview(seen: dict[str, Any]) -> Iterator[Any]:
    from rich.text import Text

    alive = "running" if seen["arbiter"] else "not running"
    head = f"arbiter {seen['epoch']} is {alive}; {seen['free']} of {seen['gpus']} GPUs are free"
    yield Text(head, no_wrap=True)
    if seen.get("unread"):
        yield Text(f"{seen['unread']} submitted or withdrawn, and not yet read by the arbiter", no_wrap=True)
    for hook in seen.get("hooks", []):
        counts = ", ".join(f"{hook[what]} {what}" for what in ("delivered", "failed", "dropped"))
        error = f"; last error: {hook['error']}" if hook["error"] else ""
        yield Text(f"hook {hook['name']}: {counts}{error}", no_wrap=True)
    ends = sorted(app["arrived_s"] + app["took_s"] for app in seen["apps"] if app["outcome"] != "open")
    if len(ends) > LATEST:
        more = f"{len(ends) - LATEST} more have ended: `astrarium cluster history` shows them"
        yield Text(more, no_wrap=True)
    from_then = ends[-LATEST:][0] if ends else 0.0
    late = (a for a in seen["apps"] if a["outcome"] == "open" or a["arrived_s"] + a["took_s"] >= from_then)
    yield _apps(list(late), seen["now_s"])
    yield _machines(seen["machines"])
    yield from _health(seen)
    if seen.get("learnt"):
        yield _learnt(seen["learnt"])


def _apps(apps: list[dict[str, Any]], now: float) -> Any:
    from astrarium.run.tables import as_it_is, plain_table, ranges

    names = ("app", "owner") if any(app.get("owner") for app in apps) else ("app",)
    titles = ("is", "GPUs", "until s", "starts", "done", "took s", "waited s", "GPU-s", "rho", "why")
    table = plain_table(*names, *titles)
    for app in apps:
        until = "" if app["until_s"] is None else f"{app['until_s']:.1f}"
        rho = "" if app["rho"] is None else f"{app['rho']:.2f}"
        table.add_row(
            *(as_it_is(app[name]) for name in names), _is(app), ranges(app["gpus"]), until, _starts(app, now),
            f"{app['done']:.0%}", f"{app['took_s']:.1f}", f"{app['waited_s']:.1f}", f"{app['gpu_s']:.1f}",
            rho, as_it_is(app["why"] or app["reason"]),
        )  # fmt: skip
    return table


def _starts(app: dict[str, Any], now: float) -> str:
    """Return in how long it will start; ~ where only leases were looked at, > where it will take longer."""
    from astrarium.run.tables import moment

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
    from astrarium.run.tables import as_it_is, plain_table

    table = plain_table("model", "network", "apart over a", "slower by")
    for one in slowdowns:
        names = as_it_is(one["model"] or "-"), as_it_is(one["network"] or "-")
        table.add_row(*names, one["spread"], f"{one['slowdown']:.2f}")
    return table


def _health(seen: dict[str, Any]) -> Iterator[Any]:
    from rich.text import Text

    from astrarium.run.tables import as_it_is, plain_table

    if seen.get("failed"):
        table = plain_table("GPU", "machine:GPU", "out of use since s", "why", "")
        for one in seen["failed"]:
            place = f"{one['machine']}:{one['number']}"
            then = "until it is well" if one["retrying"] else ""
            cells = as_it_is(place), f"{one['since_s']:.1f}", as_it_is(one["why"])
            table.add_row(str(one["gpu"]), *cells, then)
        yield table
    if seen.get("unwatched"):
        some = len(seen["unwatched"]) < len(seen["machines"])
        where = f" on {', '.join(seen['unwatched'])}" if some else ""
        yield Text(f"the health of GPUs is not watched{where}", no_wrap=True)


def _machines(machines: list[dict[str, Any]]) -> Any:
    from astrarium.run.tables import as_it_is, plain_table, ranges

    table = plain_table("machine", "name", "GPUs", "held by")
    for one in machines:
        name = as_it_is(one["name"])
        holders = as_it_is(", ".join(dict.fromkeys(one["held"].values())))
        table.add_row(str(one["machine"]), name, ranges(one["gpus"]), holders)
    return table
