"""A process of root's becomes the owner of a job, for good, before it touches anything of the owner's.

An account is what a job runs as: `user`, `group` and `extra_groups`, all numbers; an empty one is our own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# of prctl
_SET_DEATH_SIGNAL = 1
_SET_SUBREAPER = 36
_SET_NO_NEW_PRIVILEGES = 38
_PART = 4  # of all processes
_libc = ctypes.CDLL(None, use_errno=True)


def become(account: Mapping[str, Any]) -> None:
    """Become the owner of a job. Nothing is left with which to go back: not the saved ids, nor the groups."""
    if "user" not in account:
        return
    user = int(account["user"])
    group = int(account["group"])
    if user == 0:
        raise PermissionError(f"an account of a job is not root's: {dict(account)}")
    os.setgroups([int(number) for number in account["extra_groups"]])
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)
    if os.getresuid() != (user, user, user) or os.getresgid() != (group, group, group):
        raise PermissionError(f"this process did not become {user}")


def bound_processes(account: Mapping[str, Any]) -> None:
    """Leave the owner at most a part of all processes that the machine can have: our own limit, which is
    root's, is often none."""
    if "user" not in account:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    limits = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    for name in ("pid_max", "threads-max"):
        with contextlib.suppress(OSError, ValueError):
            limits.append(int(Path("/proc/sys/kernel", name).read_text()) // _PART)
    if limits:
        resource.setrlimit(resource.RLIMIT_NPROC, (min(limits), min(limits)))


def gain_nothing() -> None:
    """Have no program that this process runs be given more than it has, whatever bits its file has."""
    _prctl(_SET_NO_NEW_PRIVILEGES, 1)


def die_with_parent(parent: int, number: int) -> None:
    """Have this process get a signal when its parent ends; it may have ended before."""
    _prctl(_SET_DEATH_SIGNAL, number)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Have descendants whose parents have ended become children of this process."""
    _prctl(_SET_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}): {os.strerror(ctypes.get_errno())}")
