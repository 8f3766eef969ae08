"""astrarium cluster submit, astrarium cluster withdraw"""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from astrarium.cli.cluster.state import App, Where, somewhere
from astrarium.core.errors import AstrariumError, InputError

if TYPE_CHECKING:
    from astrarium.cluster.live.service.state_folder import Source

AppFile = Annotated[
    Path | None, typer.Argument(metavar="[FILE]", help="YAML: one app as in a cluster file, or several.")
]
Command = Annotated[str | None, typer.Option("--command", metavar="LINE", help="What it runs.")]
Name = Annotated[str | None, typer.Option("--name", help="A name that no other app has.")]
Gpus = Annotated[int | None, typer.Option("--gpus", help="GPUs that it needs at once; 1 if not given.")]
Most = Annotated[int | None, typer.Option("--most", help="GPUs that it can use at most.")]
Length = Annotated[
    str | None,
    typer.Option("--length", metavar="TIME", help="About how long it takes on them; 1h if not given."),
]
OnStop = Annotated[
    str | None,
    typer.Option(
        "--on-stop",
        metavar="HOW",
        help="checkpoint: it writes one when asked; restart: it begins anew; never: it keeps its GPUs.",
    ),
]
Team = Annotated[str | None, typer.Option("--team", help="Whose app it is; your only team if not given.")]
Priority = Annotated[
    int | None, typer.Option("--priority", help="Within its team, the higher goes first; 0 if not given.")
]
Wait = Annotated[float, typer.Option("--wait", metavar="SECONDS", help="How long to wait for an answer.")]


@somewhere
def submit(
    where: Where,
    file: AppFile = None,
    command: Command = None,
    name: Name = None,
    gpus: Gpus = None,
    most: Most = None,
    length: Length = None,
    on_stop: OnStop = None,
    team: Team = None,
    priority: Priority = None,
    wait: Wait = 5.0,
) -> None:
    """Hand an app to a live cluster."""
    values = {
        "command": command, "name": name, "gpus": gpus, "most": most, "length": length, "on_stop": on_stop,
        "team": team, "priority": priority,
    }  # fmt: skip
    options = {field: value for field, value in values.items() if value is not None}
    bodies = [_of_options(options)] if file is None else _of_file(file, options)
    for body in bodies:
        _check(body)
    with where.reached() as source:
        refused = [why for body in bodies if (why := _hand_in(source, body, wait))]
    if len(bodies) == 1 and refused:
        raise AstrariumError(refused[0])
    for why in refused:
        print(f"error: {why}", file=sys.stderr)
    if refused:
        raise AstrariumError(f"{len(refused)} of {len(bodies)} apps were refused; the others were handed in")


def _hand_in(source: Source, body: dict[str, Any], wait: float) -> str:
    """Hand an app in, and return why it was refused, if it was: others of the same file are not concerned."""
    from astrarium.cluster.live.wire.channel import WireError

    try:
        tell(str(body["name"]), source.send("app", body, wait))
    except WireError:
        raise
    except AstrariumError as error:
        return str(error)
    return ""


@somewhere
def withdraw(where: Where, app: App, wait: Wait = 5.0) -> None:
    """Take an app back: it is stopped, and not begun again."""
    with where.reached() as source:
        tell(app, source.send("withdraw", {"app": app}, wait))


def _of_options(options: dict[str, Any]) -> dict[str, Any]:
    if "command" not in options:
        raise InputError("--command", None, "a command, or a file with an app")
    name = _name_of(options["command"])
    return {"name": name, "length": "1h", "directory": str(Path().resolve()), **options}


def _name_of(command: str) -> str:
    """Make a name from what is run, when, and by which process: no other app has it."""
    words = command.split()
    script = next(
        (word for word in words if Path(word).suffix in (".py", ".sh")), words[0] if words else "app"
    )
    return f"{Path(script).stem}-{time.strftime('%m%d-%H%M%S')}-{os.getpid()}"


def _of_file(file: Path, options: dict[str, Any]) -> list[dict[str, Any]]:
    from astrarium.core.plain_data import read_yaml

    for field, value in options.items():
        option = f"--{field.replace('_', '-')}"
        raise InputError(option, value, f"to be left out beside a file: {file} says it")
    raw = read_yaml(file)
    apps = raw.get("apps", [raw]) if isinstance(raw, dict) else raw
    if not isinstance(apps, list) or not all(isinstance(app, dict) for app in apps) or not apps:
        raise InputError("", None, "an app such as {name: mine, length: 1h, command: ...}", str(file))
    home = file.resolve().parent
    return [{**app, "directory": str(home / str(app.get("directory", ".")))} for app in apps]


def _check(body: dict[str, Any]) -> None:
    """What can be known here is said at once; the rest is for the arbiter."""
    from astrarium.cluster.live.arbiter import ANY
    from astrarium.cluster.scenario.live_apps import live_apps

    live_apps(body, ANY, Path())


def tell(name: str, answer: str | None) -> None:
    if answer is None:
        print(f"{name}: left for the arbiter, which has not answered; is it running?", file=sys.stderr)
    elif answer != "accepted":
        raise AstrariumError(f"{shlex.quote(name)}: {answer}")
    else:
        print(f"{name}: accepted")
