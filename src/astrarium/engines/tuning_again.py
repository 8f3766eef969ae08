"""Who may use the folder of a run: one at a time, and only to search in the same place. Else candidates would
be others, and what is kept of the earlier ones would be thrown away without a word."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import msgspec

from astrarium.core.errors import InputError

FILE, LOCK = "search.json", "search.lock"


@contextmanager
def alone_in(folder: Path | None) -> Iterator[None]:
    """The lock goes with its process, however that ends."""
    if folder is None:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a") as file:
        _lock(file, folder)
        yield


def _lock(file: IO[str], folder: Path) -> None:
    """Where the file system knows no locks, as that of some clusters, nobody can tell."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError("folder", str(folder), "one in which no other search is running") from None
    except OSError:
        return


def go_on_as(folder: Path, told: Mapping[str, Any], again: bool) -> None:
    """*told*: by name, what makes candidates what they are. The first run writes it down; those that go on
    with it are held to it."""
    file, own = folder / FILE, _written(told)
    if not again or not file.exists():
        file.write_text(json.dumps(own, indent=2) + "\n", encoding="utf-8")
        return
    before = _read(file)
    for name in [name for name, value in own.items() if before.get(name, value) != value]:
        expected = f"{json.dumps(before[name])}, as in the run that this one goes on with; or another folder"
        raise InputError(name, told[name], expected, str(file))


def _written(told: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(msgspec.json.encode(dict(told), enc_hook=repr))
    return found


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError("", None, f"what the first run wrote there: {error}", str(file)) from error
    return found if isinstance(found, dict) else {}
