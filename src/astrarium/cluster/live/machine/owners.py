"""Apps run as their owners, where the agent is root and may do that; else as the user of the agent.

Root makes the folder of an app, gives it to the owner, and never goes into it again. Whose something is, is
told by who owns that folder, which lies where only root can write: no file of a job's says it.
"""

from __future__ import annotations

import os
import pwd
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from astrarium.cluster.live.backend import JobCommand
from astrarium.cluster.live.machine.folders import APPS
from astrarium.cluster.live.machine.keeping.records import private_folder
from astrarium.core.errors import InputError

ROOT = 0
PASSABLE = 0o711
NOBODY = (1 << 32) - 1  # to the kernel: leave the user as it is
NO_GROUP = 65534  # of users without a name: a number that is theirs by chance is maybe not their group


def account(task: JobCommand) -> dict[str, Any]:
    """Return the Unix account in which an app runs, for the keeper: empty for that of the agent itself."""
    if not task.owner or os.geteuid() != ROOT:
        return {}
    try:
        user = pwd.getpwnam(task.owner)
    except KeyError:
        return _nameless(task.owner)
    if user.pw_uid == ROOT:
        return {}
    groups = os.getgrouplist(user.pw_name, user.pw_gid)
    env = {"HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name}
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": groups, "env": env}


def _nameless(owner: str) -> dict[str, Any]:
    """Return the account of a number that has no name, as the kernel tells it of who connects."""
    if not (owner.isascii() and owner.isdecimal() and ROOT < int(owner) < NOBODY) or _has_name(int(owner)):
        return {"unknown": owner}
    env = {"HOME": "/", "USER": owner, "LOGNAME": owner}
    return {"user": int(owner), "group": NO_GROUP, "extra_groups": [], "env": env}


def _has_name(user: int) -> bool:
    try:
        pwd.getpwuid(user)
    except KeyError:
        return False
    return True


def app_folder(home: Path, name: str, owner: dict[str, Any]) -> Path:
    """Make the folder of an app, for its owner alone, and return it."""
    apps = private_folder(home / APPS)
    path = apps / name
    user = owner.get("user", os.geteuid())
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        seen = os.fstat(folder)
        if seen.st_uid not in (user, os.geteuid()):
            raise PermissionError(f"{path} belongs to user {seen.st_uid}, and the app to {user}")
        if seen.st_uid != user:
            os.fchmod(folder, 0o700)
            os.fchown(folder, user, owner["group"])
    finally:
        os.close(folder)
    for above in (home, apps) if "user" in owner else ():
        above.chmod(stat.S_IMODE(above.stat().st_mode) | PASSABLE)
    return path


def owner_of(folder: Path) -> dict[str, Any]:
    """Return the account of who owns the folder of an app: empty for our own."""
    seen = folder.lstat()
    if not stat.S_ISDIR(seen.st_mode) or os.geteuid() != ROOT or seen.st_uid == ROOT:
        return {}
    return {"user": seen.st_uid, "group": seen.st_gid, "extra_groups": []}


def check_above(field: str, folder: Path) -> None:
    """Refuse a folder of root's that somebody else has made, or could put another one in the place of."""
    folder = folder.resolve()
    for above in (folder, *folder.parents) if os.geteuid() == ROOT else ():
        if not above.exists():
            continue
        seen = above.stat()
        others_write = seen.st_mode & 0o022 and not (seen.st_mode & stat.S_ISVTX and above != folder)
        if seen.st_uid != ROOT or others_write:
            mode = stat.S_IMODE(seen.st_mode)
            who = f"user {seen.st_uid} can" if seen.st_uid != ROOT else f"its mode {mode:o} lets others"
            expected = f"a folder below ones that only root can write: {who} write {above}"
            raise InputError(field, str(folder), expected)


def impassable(folder: Path) -> Path | None:
    """Return what keeps other users from a folder, if anything does: one above it that they cannot pass."""
    walls = [
        above for above in folder.resolve().parents if above.exists() and not above.stat().st_mode & 0o001
    ]
    return walls[0] if walls else None
