"""astrarium gate policy [NAME], astrarium gate policies"""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from astrarium.cli.options import Json
from astrarium.cli.output import emit, table
from astrarium.core.errors import AstrariumError, InputError, one_of

if TYPE_CHECKING:
    from astrarium.gate.board import Board, BoardView


# Options and words that the verbs of `astrarium gate` share.


Command = Annotated[
    list[str], typer.Argument(metavar="COMMAND...", help="The program with its arguments, as ever.")
]
ClientName = Annotated[str | None, typer.Option("--name", help="What it is called on the board.")]
Gpu = Annotated[
    int, typer.Option("--gpu", min=0, metavar="N", help="Which GPU; within CUDA_VISIBLE_DEVICES if set.")
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting of the board: --set window=150us."),
]


def name_of(command: list[str], given: str | None) -> str:
    """`python -u train.py` is train, `python -m package.tool` is package.tool, `./serve` is serve."""
    if given:
        return given
    for before, word in pairwise(command):
        if word.endswith(".py"):
            return Path(word).stem
        if before == "-m":
            return word
    return Path(command[0]).name


def check_command(command: list[str]) -> None:
    """Before anything is set up."""

    if shutil.which(command[0]) is None:
        raise InputError("COMMAND", command[0], "a program that can be run")


def path_of_board(gpu: int) -> Path:
    from astrarium.gate.board import board_path
    from astrarium.gate.driver import chosen_gpu

    return board_path(chosen_gpu(gpu))


def board_of(gpu: int) -> Board | None:
    """The board of a GPU without those who are no more; None where nobody has ever used the gate."""
    from astrarium.gate.board import Board

    board = Board.find(path_of_board(gpu))
    if board is not None:
        board.sweep()
    return board


def no_board(gpu: int) -> str:
    return f"no board at {path_of_board(gpu)}: nothing runs under the gate (`astrarium gate run`)"


# astrarium gate mps [status|start|stop]


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
    found = daemon.start(home) if action == "start" else daemon.status(home)
    print(found.said)
    if not found.running and action == "start":
        raise typer.Exit(1)


DEFAULT = "astrarium"
KERNEL_POLICIES = {
    "streams": "everybody launches at once; what processes without MPS do anyway",
    "stream-priority": "the same, with latency work on streams of higher priority",
    "mps": "the same in processes that share the GPU by MPS",
    "temporal": "one request or iteration at a time, latency requests first",
    "kernel-temporal": "best-effort kernels only while no latency work runs",
    "tick-tock": "forward of one training job beside backward of the other",
    "reef-n": "a short queue of best-effort kernels; those that fit into free SMs and are shorter go beside",
    "orion": "best-effort kernels beside latency work if they are small, short in sum and of another kind",
    "astrarium": "best-effort work up to the delay that requests were seen to bear; learns what harms them",
}

Name = Annotated[str | None, typer.Argument(metavar="[NAME]", help="The policy to use from now on.")]
Wanted = Annotated[str | None, typer.Argument(metavar="[NAME]", help="Show one policy and its settings.")]


def policy(name: Name = None, settings: Set = None, gpu: Gpu = 0, json: Json = False) -> None:
    """Show the policy of a GPU's board, or change it for all who share the GPU."""
    from astrarium.gate.board_settings import read_settings
    from astrarium.run.report import plain

    board = board_of(gpu)
    if board is None:
        raise AstrariumError(no_board(gpu))
    if name is not None or settings:
        board.change(name, read_settings(settings or []))
    view = board.view()
    shown = {field: value for field, value in plain(view).items() if field in ("path", "policy", "settings")}
    emit(json, shown, _page(view), None)


def policies(name: Wanted = None, json: Json = False) -> None:
    """List the policies of the gate, or describe one."""
    if name is not None:
        describe(name, json)
        return
    listed = {each: {"summary": said} for each, said in KERNEL_POLICIES.items()}
    titles = {DEFAULT: f"{DEFAULT} (default)"}
    rows = [(titles.get(each, each), said) for each, said in KERNEL_POLICIES.items()]
    emit(json, {"policies": listed}, [table("kernel policy", "what it does", rows=rows)], None)


def describe(name: str, json: bool) -> None:
    from rich.text import Text

    if name not in KERNEL_POLICIES:
        raise InputError("kernel policy", name, one_of(list(KERNEL_POLICIES), name))
    own = _settings_of(name)
    title = Text(f"{name}: {KERNEL_POLICIES[name]}", style="bold")
    shown = {"name": name, "summary": KERNEL_POLICIES[name], "settings": own}
    emit(json, shown, [title, table("setting", "meaning", rows=own.items())], None)


def _settings_of(policy: str) -> dict[str, str]:
    """The settings that are this policy's own, with what they mean."""
    from astrarium.gate.board_settings import settings_table

    prefix = f"{policy}: "
    found = {name: setting.about for name, setting in settings_table().items()}
    return {name: said.removeprefix(prefix) for name, said in found.items() if said.startswith(prefix)}


def _page(view: BoardView) -> list[Any]:
    from rich.text import Text

    from astrarium.gate.board_settings import settings_table, write_setting

    rows = [
        (name, write_setting(name, view.settings[name]), setting.about)
        for name, setting in settings_table().items()
    ]
    said = Text(f"{view.policy}: {KERNEL_POLICIES.get(view.policy, '')}", style="bold")
    return [said, Text(f"board {view.path}\n"), table("setting", "value", "meaning", rows=rows)]
