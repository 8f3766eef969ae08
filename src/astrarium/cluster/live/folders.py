"""Where things of a job are, in the folder that all machines see: apps/APP/job-J/run-R/part-P."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import NamedTuple

import msgspec

from astrarium.cluster.live.backend import Order
from astrarium.cluster.live.session import CHECKPOINT, PROGRESS


def job_folder(home: Path, app: int, name: str, job: int) -> Path:
    plain = re.sub(r"[^\w.=+-]+", "-", name).strip("-.")[:80]
    return home / "apps" / f"{app}-{plain}" / f"job-{job}"


def run_folder(home: Path, order: Order) -> Path:
    return job_folder(home, order.key.app, order.app, order.key.job) / f"run-{order.key.run}"


def part_folder(home: Path, order: Order, place: int) -> Path:
    return run_folder(home, order) / f"part-{place}"


class Resume(NamedTuple):
    """*kept*: of its work."""

    checkpoint: str = ""
    kept: float = 0.0


def newest_checkpoint(home: Path, order: Order) -> Resume:
    """Of an earlier run. What a run writes after a later one has begun is never looked at: the later one was
    told which checkpoint is its own. Older ones are cleared away."""
    job = job_folder(home, order.key.app, order.app, order.key.job)
    found = Resume()
    for run in range(order.key.run - 1, 0, -1):
        path = job / f"run-{run}" / CHECKPOINT
        if path.exists():
            if found.checkpoint:
                _clear(path)
            else:
                found = Resume(str(path), read_progress(path.parent).kept)
    return found


def _clear(path: Path) -> None:
    """A program with checkpoints of its own may have made it a folder."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


class Progress(msgspec.Struct, frozen=True):
    """Of a run, in parts of its work."""

    progress: float = 0.0
    kept: float = 0.0


def read_progress(run: Path) -> Progress:
    """Nothing, where there is none, or where a program has put something of its own under that name."""
    try:
        return msgspec.json.decode((run / PROGRESS).read_bytes(), type=Progress)
    except (OSError, msgspec.MsgspecError):
        return Progress()
