"""Apps run as their owner, where the agent is root and may do that; else as the user of the agent."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import Any

from astrarium.cluster.live.backend import JobCommand

ROOT = 0
PASSABLE = 0o711


def account(task: JobCommand) -> dict[str, Any]:
    """Return the Unix account in which an app runs, for the keeper: empty for that of the agent itself."""
    if not task.owner or os.geteuid() != ROOT:
        return {}
    try:
        found = pwd.getpwnam(task.owner)
    except KeyError:
        return {"unknown": task.owner}
    if found.pw_uid == ROOT:
        return {}
    groups = os.getgrouplist(found.pw_name, found.pw_gid)
    env = {"HOME": found.pw_dir, "USER": found.pw_name, "LOGNAME": found.pw_name}
    return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": groups, "env": env}


def credentials(owner: dict[str, Any]) -> dict[str, Any]:
    """Return the options with which `subprocess` starts something in an account."""
    return {name: owner[name] for name in ("user", "group", "extra_groups") if name in owner}


def hand_over(home: Path, run: Path, owner: dict[str, Any]) -> None:
    """Let an owner write into the folder of a run. The folder stays ours, and sticky: what we have put there,
    such as orders, its owner cannot replace. Only the owner's group may look into the folders of an app."""
    if "user" not in owner:
        return
    for folder in (home, home / "apps"):
        folder.chmod(folder.stat().st_mode & 0o7777 | PASSABLE)
    for folder, mode in ((run.parent.parent, 0o750), (run.parent, 0o750), (run, 0o1770)):
        os.chown(folder, ROOT, owner["group"])
        folder.chmod(mode)
