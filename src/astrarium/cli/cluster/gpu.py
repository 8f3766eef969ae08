"""astrarium cluster gpu drain, astrarium cluster gpu retry"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from astrarium.cli.cluster.state import (
    ArbiterPlace,
    Certificate,
    KeyFile,
    Remote,
    State,
    User,
    reached,
)
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


def drain(
    gpu: Gpu,
    why: Why = "",
    state: State = None,
    wait: Wait = 5.0,
    arbiter: ArbiterPlace = None,
    user: User = None,
    key_file: KeyFile = None,
    certificate: Certificate = "",
) -> None:
    """Take a GPU out of use: what runs there writes a checkpoint and goes on elsewhere."""
    with reached(state, Remote(arbiter, user, key_file, certificate)) as source:
        tell(gpu, source.send("drain", {**_place(gpu), "why": why}, wait))


def retry(
    gpu: Gpu,
    state: State = None,
    wait: Wait = 5.0,
    arbiter: ArbiterPlace = None,
    user: User = None,
    key_file: KeyFile = None,
    certificate: Certificate = "",
) -> None:
    """Use a GPU again that is out of use, as soon as it is found to be well."""
    with reached(state, Remote(arbiter, user, key_file, certificate)) as source:
        tell(gpu, source.send("retry", _place(gpu), wait))


def _place(written: str) -> dict[str, Any]:
    machine, _, number = written.rpartition(":")
    if not machine or not number.isdecimal():
        raise InputError("MACHINE:GPU", written, "a machine and the number of its GPU, such as 0:2")
    return {"machine": machine, "gpu": int(number)}
