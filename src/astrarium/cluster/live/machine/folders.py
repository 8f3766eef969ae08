"""Where the files of a cluster's jobs lie, in two trees that are never mixed.

`orders/APP/job-J/run-R/part-P` is written by arbiters, agents and keepers alone, and is what they decide by.
`apps/APP` belongs to the owner of the app, and `job-J/run-R` in it is what a job writes: `keeping.job_files`
opens it, as the owner. APP is the number of the app and its name.
"""

from __future__ import annotations

import re
import threading
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from astrarium.cluster.live.backend import Order
from astrarium.cluster.live.machine.keeping.job_files import CHECKPOINT
from astrarium.cluster.live.machine.keeping.records import ORDER, OUTCOME, TOLD, passes

APPS = "apps"
ORDERS = "orders"
LOCKS = "locks"


def app_name(app: int, name: str) -> str:
    """Return the name of an app's folders, which no other app has had: it begins with the app's number."""
    plain = re.sub(r"[^\w.=+-]+", "-", name).strip("-.")[:80]
    return f"{app}-{plain}"


def job_name(order: Order) -> str:
    return f"{app_name(order.key.app, order.app)}/job-{order.key.job}"


def run_folder(home: Path, order: Order) -> Path:
    """Return the folder that a run may write."""
    return home / APPS / job_name(order) / f"run-{order.key.run}"


def order_folder(home: Path, order: Order) -> Path:
    return home / ORDERS / job_name(order) / f"run-{order.key.run}"


def part_folder(home: Path, order: Order, place: int) -> Path:
    return order_folder(home, order) / f"part-{place}"


class JobClaims(msgspec.Struct, frozen=True):
    """What a job has told its keeper: how far it is, and how far its checkpoint, in parts of its work; the
    *stamp* of that, if there is one; and what troubles it."""

    progress: float = 0.0
    kept: float = 0.0
    stamp: tuple[int, int] | None = None
    trouble: str = ""


class _Ended(msgspec.Struct, frozen=True):
    told: JobClaims = JobClaims()


def read_claims(part: Path) -> JobClaims:
    """Return what a job has told last."""
    ended = read_file(part / OUTCOME, _Ended)
    return ended.told if ended is not None else read_file(part / TOLD, JobClaims) or JobClaims()


class Resume(NamedTuple):
    """A checkpoint to resume from, which a *run* of the job has written, with so much of the work *kept*."""

    checkpoint: str = ""
    kept: float = 0.0
    run: int = 0


def newest_checkpoint(home: Path, order: Order) -> Resume:
    """Return the newest checkpoint of an earlier run. What a run writes after a later one has begun is never
    looked at: the later one was told which checkpoint is its own. A job may have had very many runs: one that
    has written none says which it was given."""
    job = home / APPS / job_name(order)
    for run in range(order.key.run - 1, 0, -1):
        part = home / ORDERS / job_name(order) / f"run-{run}" / "part-0"
        claims = read_claims(part)
        if claims.stamp is not None:
            return Resume(str(job / f"run-{run}" / CHECKPOINT), claims.kept, run)
        if (earlier := read_file(part / ORDER, _Given)) is not None:
            first = earlier.resumed_run
            kept = earlier.part.kept
            return Resume(str(job / f"run-{first}" / CHECKPOINT), kept, first) if first else Resume()
    return Resume()


class _GivenPart(msgspec.Struct, frozen=True):
    kept: float


class _Given(msgspec.Struct, frozen=True):
    """What an order says of the checkpoint that it begins from."""

    resumed_run: int
    part: _GivenPart


T = TypeVar("T")
_preparing = threading.Lock()


def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """Return the decoder of a kind of file. One thread at a time prepares one: where several prepare the same
    at once, msgspec may crash."""
    with _preparing:
        return _prepared(kind)


@cache
def _prepared(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def read_file(path: Path, kind: type[T]) -> T | None:
    """Return what a file of ours holds; None where it is missing, or a power failure has left half of it. An
    error that passes is no such thing."""
    try:
        content: T = _decoder(kind).decode(path.read_bytes())
        return content
    except (OSError, msgspec.MsgspecError) as error:
        if passes(error):
            raise
        return None
