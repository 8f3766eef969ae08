"""The folder of a run belongs to one search at a time, and to one space, seed and goal.

With others its candidates would differ, and what is kept of the earlier ones would be thrown away without a
word.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import msgspec

from astrarium.core.errors import InputError

FILE = "search.json"
LOCK = "search.lock"


@contextmanager
def folder_lock(folder: Path | None) -> Iterator[None]:
    """Hold the lock of a run's folder. The lock goes with its process, however that ends."""
    if folder is None:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a") as file:
        _lock(file, folder)
        yield


def _lock(file: IO[str], folder: Path) -> None:
    """Take the lock, or refuse the folder. On file systems without locks nothing is checked."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError("folder", str(folder), "one in which no other search is running") from None
    except OSError:
        return


def check_same_search(folder: Path, definition: Mapping[str, Any], resume: bool) -> None:
    """Check that a resumed run searches as the first one did. *definition* holds all that candidates follow
    from: the first run writes it down, and those that resume it are held to it."""
    file = folder / FILE
    own = _written(definition)
    if not resume or not file.exists():
        file.write_text(json.dumps(own, indent=2) + "\n", encoding="utf-8")
        return
    before = _read(file)
    for name in [name for name, value in own.items() if before.get(name, value) != value]:
        expected = f"{json.dumps(before[name])}, as in the run that this one goes on with; or another folder"
        raise InputError(name, definition[name], expected, str(file))


def _written(definition: Mapping[str, Any]) -> dict[str, Any]:
    """Return the definition as it reads once it has been written as JSON."""
    written: dict[str, Any] = json.loads(msgspec.json.encode(dict(definition), enc_hook=repr))
    return written


def _read(file: Path) -> dict[str, Any]:
    try:
        definition = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError("", None, f"what the first run wrote there: {error}", str(file)) from error
    return definition if isinstance(definition, dict) else {}
