"""Whoever wrote a pickle can run code in the process that loads it, so files of others are not unpickled.

PyTorch reads tensors and plain values without running anything (`weights_only`), whoever wrote them. All else
is loaded only from files that belong to the user who loads them, or to root, and that nobody else may write.
What is checked is the open file, not its name: it is the same file that is then read.
"""

from __future__ import annotations

import grp
import os
import pickle
import pwd
import stat
from pathlib import Path
from typing import Any, BinaryIO

from astrarium.core.errors import InputError

_ROOT = 0
_ZIPPED = b"PK"  # as torch.save begins a file
_RIGHT = "copy it if you trust it, or have its owner save nothing but tensors and plain values"


class UntrustedFile(InputError):
    """Somebody else may have written a file whose loading would run code."""


def load_file(file: BinaryIO, field: str = "checkpoint", device: str | None = None) -> Any:
    """Return what `torch.save` or `pickle.dump` wrote into an open file. *field* names it in errors, *device*
    is where PyTorch puts tensors: where they were, unless given."""
    zipped = file.read(len(_ZIPPED)) == _ZIPPED
    file.seek(0)
    if zipped:
        return _load_torch(file, field, device)
    check_own(file, field)
    return pickle.load(file)


def read_own(path: Path, field: str) -> bytes:
    """Return the bytes of a file that is about to be unpickled."""
    with path.open("rb") as file:
        check_own(file, field)
        return file.read()


def check_own(file: BinaryIO, field: str) -> None:
    """Refuse an open file that somebody else than this user and root may have written."""
    status = os.fstat(file.fileno())
    if status.st_uid not in (os.geteuid(), _ROOT):
        whose = f"it belongs to {_user(status.st_uid)}, and you are {_user(os.geteuid())}"
    elif _others_may_write(status):
        whose = f"others may write it (mode {stat.S_IMODE(status.st_mode):o}; chmod go-w once you trust it)"
    else:
        return
    expected = f"a file that only you can have written, since loading it may run code: {whose}; {_RIGHT}"
    raise UntrustedFile(field, os.fspath(file.name), expected)


def make_own(path: Path) -> None:
    """Take the right to write a file from everybody else: whoever writes a pickle does this."""
    path.chmod(stat.S_IMODE(path.stat().st_mode) & ~(stat.S_IWGRP | stat.S_IWOTH))


def _others_may_write(status: os.stat_result) -> bool:
    by_group = status.st_mode & stat.S_IWGRP and not _is_private_group(status.st_gid, status.st_uid)
    return bool(by_group or status.st_mode & stat.S_IWOTH)


def _is_private_group(group: int, user: int) -> bool:
    """Tell whether a group is its user's alone: many systems make one of the same name for each user, and let
    groups write what users make (umask 002)."""
    try:
        entry = grp.getgrgid(group)
        name = pwd.getpwuid(user).pw_name
    except KeyError:
        return False
    return entry.gr_name == name and set(entry.gr_mem) <= {name}


def _load_torch(file: BinaryIO, field: str, device: str | None) -> Any:
    import torch

    try:
        return torch.load(file, map_location=device, weights_only=True)
    except pickle.UnpicklingError:  # it holds other objects too
        check_own(file, field)
        file.seek(0)
        return torch.load(file, map_location=device, weights_only=False)


def _user(number: int) -> str:
    try:
        return f"{pwd.getpwuid(number).pw_name} (user {number})"
    except KeyError:
        return f"user {number}"
