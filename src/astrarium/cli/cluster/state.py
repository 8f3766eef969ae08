"""Where a live cluster keeps its state: found by name, by the environment, or because there is only one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from astrarium.core.errors import AstrariumError, InputError

if TYPE_CHECKING:
    import sqlite3

    from astrarium.cluster.live.service import Source

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


ArbiterPlace = Annotated[
    str | None,
    typer.Option("--arbiter", metavar="HOST:PORT", help="Over the network: where the arbiter listens."),
]
User = Annotated[str | None, typer.Option("--user", help="Whose key it is, with --arbiter; else your name.")]
KeyFile = Annotated[
    Path | None, typer.Option("--key-file", metavar="FILE", help="Your key, with --arbiter: of mode 600.")
]
Certificate = Annotated[
    str,
    typer.Option("--certificate", metavar="FILE", help="The arbiter's, if it speaks TLS."),
]


class Remote(NamedTuple):
    """An arbiter elsewhere, and who talks to it."""

    arbiter: str | None
    user: str | None
    key_file: Path | None
    certificate: str


@contextmanager
def reached(state: Path | None, remote: Remote) -> Iterator[Source]:
    """Reach an arbiter over the network, or by the socket in its folder; if none runs, the folder itself."""
    from astrarium.cluster.live.service import StateFolder, unix_client

    if remote.arbiter is not None:
        yield _over_network(remote.arbiter, remote)
        return
    for option, value in (("--user", remote.user), ("--key-file", remote.key_file)):
        if value is not None:
            raise InputError(option, str(value), "--arbiter HOST:PORT beside it")
    home = state_folder(state)
    with disk_errors(home):
        yield unix_client(home) or StateFolder(home)


def _over_network(arbiter: str, remote: Remote) -> Source:
    import getpass

    from astrarium.cluster.live.backends.wire import connected, read_key, read_place
    from astrarium.cluster.live.service import Client

    if remote.key_file is None:
        raise InputError("--key-file", None, "the file with your key, which the arbiter has as well")
    where = read_place("--arbiter", arbiter, remote.certificate)
    return Client(connected(where, remote.user or getpass.getuser(), read_key("--key-file", remote.key_file)))


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
    """Who asks must be allowed to read all, and need not be allowed to write."""
    from astrarium.cluster.live.store import FILE, connected

    if not os.access(home / FILE, os.R_OK):
        told = "only the user of the arbiter and root may read it; `status` and `logs` ask the arbiter"
        raise AstrariumError(f"{home / FILE}: {told}")
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
