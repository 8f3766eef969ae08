"""astrarium cluster gpu drain, astrarium cluster gpu retry"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from astrarium.cli.cluster.state import Where, somewhere
from astrarium.cli.cluster.submit import Wait, tell
from astrarium.core.errors import InputError

Gpu = Annotated[
    str,
    typer.Argument(
        metavar="MACHINE:GPU",
        help="The number or name of a machine, and its GPU as the machine counts: 0:2, machine-0:2.",
    ),
]
Why = Annotated[str, typer.Option("--why", help="What `cluster status` says about it.")]


@somewhere
def drain(where: Where, gpu: Gpu, why: Why = "", wait: Wait = 5.0) -> None:
    """Take a GPU out of use: what runs there writes a checkpoint and goes on elsewhere."""
    with where.reached() as source:
        tell(gpu, source.send("drain", {**_place(gpu), "why": why}, wait))


@somewhere
def retry(where: Where, gpu: Gpu, wait: Wait = 5.0) -> None:
    """Use a GPU again that is out of use, as soon as it is found to be well."""
    with where.reached() as source:
        tell(gpu, source.send("retry", _place(gpu), wait))


def _place(written: str) -> dict[str, Any]:
    machine, _, number = written.rpartition(":")
    if not machine or not number.isdecimal():
        raise InputError("MACHINE:GPU", written, "a machine and the number of its GPU, such as 0:2")
    return {"machine": machine, "gpu": int(number)}
