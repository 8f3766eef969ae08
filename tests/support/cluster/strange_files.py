"""What a job may put in the place of a file, and what must not change because of it."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from astrarium.cluster.live.machine.keeping.job_files import (
    CHECKPOINT,
    DEEPEST,
)

SECRET = b"what only its owner may read"
HUGE = 3 << 30  # bytes, of a file that takes no room


@contextlib.contextmanager
def untouched(folder: Path) -> Iterator[None]:
    """Nothing in a folder is changed, removed or added."""

    def state() -> list[Any]:
        every = sorted([folder, *folder.rglob("*")])
        return [(str(path), stat.st_mtime_ns, stat.st_size, stat.st_mode)
                for path in every for stat in [path.lstat()]]  # fmt: skip

    before = state()
    yield
    assert state() == before


def sparse(path: Path, outside: Path) -> None:
    with path.open("wb") as file:
        file.truncate(HUGE)


def bound_socket(path: Path, outside: Path) -> None:
    here = os.open(path.parent, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(f"/proc/self/fd/{here}/{path.name}")
    os.close(here)


def nested(path: Path, outside: Path, depth: int = DEEPEST + 40) -> None:
    """Put folders into folders."""
    path.mkdir()
    here = os.open(path, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("a", dir_fd=here)
        inner = os.open("a", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)


def folder_of_oddities(path: Path, outside: Path) -> None:
    path.mkdir()
    for name, place in STRANGE.items():
        if place is not folder_of_oddities:
            place(path / name, outside)


STRANGE: dict[str, Callable[[Path, Path], None]] = {
    "link to a file": lambda path, outside: path.symlink_to(outside / "secret"),
    "link to a folder": lambda path, outside: path.symlink_to(outside),
    "link to a checkpoint": lambda path, outside: path.symlink_to(outside / CHECKPOINT),
    "link to nothing": lambda path, outside: path.symlink_to(outside / "nothing"),
    "link to itself": lambda path, outside: path.symlink_to(path.name),
    "link to a device": lambda path, outside: path.symlink_to("/dev/zero"),
    "pipe": lambda path, outside: os.mkfifo(path),
    "socket": bound_socket,
    "folder": lambda path, outside: path.mkdir(),
    "sparse": sparse,
    "nested": nested,
    "oddities": folder_of_oddities,
    "closed": lambda path, outside: path.touch(mode=0),
    "empty": lambda path, outside: path.touch(),
}
