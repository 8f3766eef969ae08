"""Where a live cluster keeps its state: found by name, by the environment, or because there is only one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from astrarium.core.errors import AstrariumError, InputError

if TYPE_CHECKING:
    import sqlite3

VARIABLE = "ASTRARIUM_STATE"
App = Annotated[str, typer.Argument(metavar="APP", help="Its name.")]
State = Annotated[
    Path | None,
    typer.Option(
        "--state",
        metavar="DIR",
        help=f"The state folder of the cluster; else {VARIABLE}, else the one *.state folder that is here.",
    ),
]


@contextmanager
def disk_errors(home: Path) -> Iterator[None]:
    """A disk that is full or cannot be written to is the operator's to see to, and nothing is lost by it."""
    import sqlite3

    try:
        yield
    except sqlite3.Error as error:
        told = "what was written stands, and jobs run on: see to it, and run it again"
        raise AstrariumError(f"{home}: the store cannot be read or written: {error}; {told}") from error
    except OSError as error:
        if error.filename is None and error.errno is None:
            raise
        told = "folders of the state and of jobs must be there and writable; jobs run on"
        raise AstrariumError(f"{error.filename or home}: {error.strerror}; {told}") from error


@contextmanager
def reading(home: Path) -> Iterator[sqlite3.Connection]:
    """Who asks need not be allowed to write."""
    from astrarium.cluster.live.store import FILE, connected

    with disk_errors(home), closing(connected(home / FILE, read_only=True)) as db:
        yield db


def state_folder(given: Path | None) -> Path:
    """One that an arbiter has written."""
    from astrarium.cluster.live.store import FILE

    named = given or (Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None)
    found = [named] if named else sorted(path.parent for path in Path().glob(f"*.state/{FILE}"))
    if len(found) != 1 or not (found[0] / FILE).is_file():
        told = f"the state folder of one cluster that `astrarium run` has begun, here or in {VARIABLE}"
        raise InputError("--state", ", ".join(map(str, found)) or None, told)
    return found[0]
