"""Where things of a job are, in the folder that all machines see: apps/APP/job-J/run-R/part-P."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import msgspec

from astrarium.cluster.seen import Order
from astrarium.engines.cluster_session import CHECKPOINT, PROGRESS


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
                path.unlink(missing_ok=True)
            else:
                found = Resume(str(path), _kept(path.parent / PROGRESS))
    return found


def _kept(path: Path) -> float:
    try:
        return float(msgspec.json.decode(path.read_bytes())["kept"])
    except (FileNotFoundError, msgspec.DecodeError, KeyError):
        return 0.0
