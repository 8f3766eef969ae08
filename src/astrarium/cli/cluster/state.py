"""Where a live cluster keeps its state: found by name, by the environment, or because there is only one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, NamedTuple, get_type_hints

import typer

from astrarium.core.errors import AstrariumError, InputError

if TYPE_CHECKING:
    from astrarium.cluster.live.service.state_folder import Source

VARIABLE = "ASTRARIUM_STATE"
App = Annotated[str, typer.Argument(metavar="APP", help="Its name.")]
State = Annotated[
    Path | None,
    typer.Option(
        "--state",
        metavar="DIR",
        readable=False,  # others than the user of the arbiter may pass it, and no more
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


class Where(NamedTuple):
    """Which cluster is meant: the one of a folder here, or an arbiter elsewhere and who talks to it."""

    state: State = None
    arbiter: ArbiterPlace = None
    user: User = None
    key_file: KeyFile = None
    certificate: Certificate = ""

    @contextmanager
    def reached(self) -> Iterator[Source]:
        """Reach an arbiter over the network, or by the socket in its folder; if none runs, the folder."""
        from astrarium.cluster.live.service.unix_socket import unix_client

        if self.arbiter is not None:
            yield self._over_network(self.arbiter)
            return
        for option, value in (("--user", self.user), ("--key-file", self.key_file)):
            if value is not None:
                raise InputError(option, str(value), "--arbiter HOST:PORT beside it")
        home = state_folder(self.state)
        with disk_errors(home):
            yield unix_client(home) or _folder(home)

    def _over_network(self, arbiter: str) -> Source:
        from astrarium.cluster.live.service.client import Client
        from astrarium.cluster.live.wire.handshake import connected, read_place
        from astrarium.cluster.live.wire.keys import read_key

        if self.key_file is None:
            raise InputError("--key-file", None, "the file with your key, which the arbiter has as well")
        place = read_place("--arbiter", arbiter, self.certificate)
        user = self.user or _own_name()
        return Client(connected(place, user, read_key("--key-file", self.key_file)))


def _own_name() -> str:
    """Return the name of the user who runs this; the number of one who has none here."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _folder(home: Path) -> Source:
    """Return a cluster without its arbiter; whoever asks must be allowed to read the store."""
    from astrarium.cluster.live.service.state_folder import StateFolder
    from astrarium.cluster.live.store import FILE

    if not os.access(home / FILE, os.R_OK):
        problem = "no arbiter answers here, and only its user and root may read the store"
        raise AstrariumError(f"{home / FILE}: {problem}")
    return StateFolder(home)


def somewhere(verb: Callable[Concatenate[Where, ...], None]) -> Callable[..., None]:
    """Give a command the options of `Where` in place of its first parameter."""

    @wraps(verb)
    def command(**options: Any) -> None:
        where = Where(**{name: options.pop(name) for name in Where._fields})
        verb(where, **options)

    own = list(signature(verb, eval_str=True).parameters.values())[1:]
    hints = get_type_hints(Where, include_extras=True)
    options = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=Where._field_defaults[name], annotation=hints[name])
        for name in Where._fields
    ]
    named = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in own] + options
    command.__signature__ = Signature(named)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in named}
    return command


@contextmanager
def disk_errors(home: Path) -> Iterator[None]:
    """A disk that is full or cannot be written to is the operator's to see to, and nothing is lost by it."""
    import sqlite3

    try:
        yield
    except sqlite3.Error as error:
        advice = "what was written stands, and jobs run on: see to it, and run it again"
        raise AstrariumError(f"{home}: the store cannot be read or written: {error}; {advice}") from error
    except OSError as error:
        if error.filename is None and error.errno is None:
            raise
        advice = "folders of the state and of jobs must be there and writable; jobs run on"
        raise AstrariumError(f"{error.filename or home}: {error.strerror}; {advice}") from error


def state_folder(option: Path | None) -> Path:
    """One that an arbiter has written."""
    from astrarium.cluster.live.store import FILE

    named = option or (Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None)
    folders = [named] if named else sorted(path.parent for path in Path().glob(f"*.state/{FILE}"))
    if len(folders) != 1 or not _is_begun(folders[0]):
        expected = f"the state folder of one cluster that `astrarium run` has begun, here or in {VARIABLE}"
        raise InputError("--state", ", ".join(map(str, folders)) or None, expected)
    return folders[0]


def _is_begun(home: Path) -> bool:
    from astrarium.cluster.live.store import FILE

    try:
        return (home / FILE).is_file()
    except PermissionError:
        raise InputError("--state", str(home), "a folder that you may pass through") from None
