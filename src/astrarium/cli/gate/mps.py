"""astrarium gate mps [status|start|stop]"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from astrarium.core.errors import InputError, one_of

if TYPE_CHECKING:
    pass

ACTIONS = ("status", "start", "stop")

Action = Annotated[str, typer.Argument(metavar="[ACTION]", help="status, start or stop.")]


def mps(action: Action = "status") -> None:
    """Look at, start or stop the MPS daemon that `gate run` uses. Programs that run under it end with it."""
    from astrarium.gate import mps as daemon
    from astrarium.gate.library import private_home

    if action not in ACTIONS:
        raise InputError("ACTION", action, one_of(list(ACTIONS), action))
    home = private_home()
    if action == "stop":
        print("MPS stopped" if daemon.stop(home) else "no MPS that was started by `astrarium gate`")
        return
    status = daemon.start(home) if action == "start" else daemon.status(home)
    print(status.description)
    if not status.running and action == "start":
        raise typer.Exit(1)
