"""Options that the verbs of `astrarium gate` share, and the board that they are about."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from astrarium.core.errors import InputError

if TYPE_CHECKING:
    from astrarium.gate.board import Board

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


def name_of(command: list[str], chosen: str | None) -> str:
    """`python -u train.py` is train, `python -m package.tool` is package.tool, `./serve` is serve."""
    if chosen:
        return chosen
    for before, word in pairwise(command):
        if word.endswith(".py"):
            return Path(word).stem
        if before == "-m":
            return word
    return Path(command[0]).name


def check_command(command: list[str]) -> None:
    """Refuse a command that cannot be run, before anything is set up."""

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
