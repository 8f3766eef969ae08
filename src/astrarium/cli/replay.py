"""astrarium replay PATH"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from astrarium.cli.opening import tell
from astrarium.cli.options import OnePolicy
from astrarium.core.errors import InputError

DIVERGED = 1
Recorded = Annotated[
    Path,
    typer.Argument(
        metavar="PATH",
        help="What `serve --record` wrote, or a run folder with a trace (`simulate --trace`, a live search).",
    ),
]


def replay(path: Recorded, policy: OnePolicy = None) -> None:
    """Feed a recorded run, of any level, through a fresh policy: does it decide the same?"""
    from astrarium.api.runs import replay_file

    try:
        found = replay_file(path, policy, tell)
    except InputError as error:
        field = "PATH" if error.field == "source" else error.field
        of_policy = policy is not None and field.startswith("policy")
        source = error.source or (f"-p {policy}" if of_policy else "")
        raise InputError(field, error.value, error.expected, source) from None
    print(f"{path}: {found}" + (f" of {found.parts} part(s)" if found else ""))
    if not found:
        raise typer.Exit(DIVERGED)
