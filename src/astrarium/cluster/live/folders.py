"""The files of a job lie in folders that all machines see: apps/APP/job-J/run-R/part-P."""

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
    """A checkpoint to resume from, and how much of the work it has *kept*."""

    checkpoint: str = ""
    kept: float = 0.0


def newest_checkpoint(home: Path, order: Order) -> Resume:
    """Return the newest checkpoint of an earlier run, and clear away older ones. What a run writes after a
    later one has begun is never looked at: the later one was told which checkpoint is its own."""
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
    """Remove a checkpoint. A program with checkpoints of its own may have made it a folder."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


class RunProgress(msgspec.Struct, frozen=True):
    """How far a run is, in parts of its work."""

    progress: float = 0.0
    kept: float = 0.0


def read_progress(run: Path) -> RunProgress:
    """Return the progress of a run; none where its file is missing, or holds something else."""
    try:
        return msgspec.json.decode((run / PROGRESS).read_bytes(), type=RunProgress)
    except (OSError, msgspec.MsgspecError):
        return RunProgress()
