"""Whoever orders a part of a run and its keeper talk by files, in a folder that nobody else can write.

What is decided by lies here: orders, wishes, outcomes, and what a job has told its keeper.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from pathlib import Path
from typing import Any

ORDER = "order.json"
OUTCOME = "outcome.json"
TOLD = "told.json"
ALIVE = "alive"
LAUNCHED = "keeper.txt"
BEGUN = "begun"
STOP = "stop"
CLOSED = "closed"
# a wish for other GPUs, and that it was met
RESIZE = "resize.json"
RESIZED = "resized.json"

NO_MEMORY = {errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE}
NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS}


def passes(error: BaseException) -> bool:
    """Return whether what failed may work later: when there is room on the disk, or memory."""
    known = isinstance(error, OSError) and error.errno in NO_MEMORY | NO_SPACE
    return known or isinstance(error, MemoryError)


def private_folder(path: Path) -> Path:
    """Make a folder, and those above it that are missing, for our user alone."""
    for folder in (*reversed(path.parents), path):
        if not folder.exists():
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    return path


def write_whole(path: Path, content: object, lasting: bool = False) -> None:
    """Write a file so that whoever reads it finds all of it or nothing; *lasting*: whatever happens then."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(draft, flags, 0o600), "w", encoding="utf-8") as file:
            file.write(json.dumps(content))
            if lasting:
                file.flush()
                os.fsync(file.fileno())
        draft.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def read_whole(path: Path) -> Any:
    """Return what was written; None where it is missing, or was torn."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def mark(path: Path) -> None:
    """Make an empty file, for our user alone."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))


def locked_file(path: Path) -> int | None:
    """Return the descriptor of a file that only we hold; None while another does, or it cannot be made."""
    try:
        private_folder(path.parent)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
