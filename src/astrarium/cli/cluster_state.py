"""Where a live cluster keeps its state: found by name, by the environment, or because there is only one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

VARIABLE = "ASTRARIUM_STATE"
State = Annotated[
    Path | None,
    typer.Option(
        "--state",
        metavar="DIR",
        help=f"The state folder of the cluster; else {VARIABLE}, else the one *.state folder that is here.",
    ),
]


def state_folder(given: Path | None) -> Path:
    """One that an arbiter has written."""
    from astrarium.core.errors import InputError
    from astrarium.engines.cluster_store import FILE

    named = given or (Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None)
    found = [named] if named else sorted(path.parent for path in Path().glob(f"*.state/{FILE}"))
    if len(found) != 1 or not (found[0] / FILE).is_file():
        told = "the state folder of a cluster that `astrarium cluster run` has begun"
        raise InputError("--state", ", ".join(map(str, found)) or None, told)
    return found[0]
