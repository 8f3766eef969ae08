"""The checkpoints on a machine: as its jobs write them, or as they were brought.

What is known of them is what their keepers were told, and what was written down when they were brought: never
what lies beside them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from astrarium.cluster.live.backend import JobCommand
from astrarium.cluster.live.backends.hosts.checkpoints import Checkpoint, Stamp, receive_pieces, send_pieces
from astrarium.cluster.live.machine.as_owner import Errand, clear_checkpoints
from astrarium.cluster.live.machine.folders import APPS, ORDERS, read_claims, read_file
from astrarium.cluster.live.machine.keeping.records import mark, private_folder, write_whole
from astrarium.cluster.live.machine.owners import account, app_folder
from astrarium.cluster.live.wire.channel import Channel

_RUN = re.compile(r"run-(\d+)")

# in the folder of a run's orders
BROUGHT = "brought.json"
CLEARED = "cleared"


def held(home: Path, job: str, run: int) -> Checkpoint | None:
    """Return the checkpoint of a run that lies here."""
    folder = home / ORDERS / job / f"run-{run}"
    if (folder / CLEARED).exists():
        return None
    brought = read_file(folder / BROUGHT, Checkpoint)
    claims = read_claims(folder / "part-0")
    return brought or (
        Checkpoint(job, run, Stamp(*claims.stamp), claims.kept) if claims.stamp is not None else None
    )


def all_held(home: Path) -> Iterator[Checkpoint]:
    """Yield the newest checkpoint of every job that has one here."""
    for folder in home.glob(f"{ORDERS}/*/job-*"):
        job = folder.relative_to(home / ORDERS).as_posix()
        checkpoints = (held(home, job, run) for run in sorted(_runs(folder), reverse=True))
        if newest := next((checkpoint for checkpoint in checkpoints if checkpoint is not None), None):
            yield newest


def _runs(job: Path) -> list[int]:
    named = (_RUN.fullmatch(path.name) for path in job.glob("run-*"))
    return [int(match[1]) for match in named if match]


def clear_before(home: Path, job: str, run: int) -> None:
    """Clear away the checkpoints of earlier runs."""
    clear_checkpoints(home, job, run)
    note_cleared(home, job, run)


def note_cleared(home: Path, job: str, run: int, keep: int = 0) -> None:
    """Write down that the checkpoints of earlier runs are cleared away, but for that of the run to *keep*."""
    for earlier in _runs(home / ORDERS / job):
        if earlier < run and earlier != keep:
            folder = home / ORDERS / job / f"run-{earlier}"
            mark(folder / CLEARED)
            (folder / BROUGHT).unlink(missing_ok=True)


@contextmanager
def packed(home: Path, one: Checkpoint) -> Iterator[tuple[Checkpoint, Callable[[Channel], None]]]:
    """Yield a checkpoint of this machine as it is now, packed by its owner, and what sends it; the other end
    throws it away if it changes meanwhile."""
    app, _, job = one.job.partition("/")
    with Errand("pack", home / APPS / app, [job, f"run-{one.run}"]) as errand:
        stamp = _stamp(errand.line())
        if stamp is None:
            raise OSError(f"{one.job}: the checkpoint of run {one.run} is gone")
        brought = (one.folder(home / ORDERS) / BROUGHT).exists()  # its stamp is that of where it was written
        now = one if brought else msgspec.structs.replace(one, stamp=stamp)
        yield now, lambda channel: send_pieces(channel, errand.read, errand.ended_well)


def _stamp(line: bytes) -> Stamp | None:
    """Return the stamp that an errand has told; None: there is no checkpoint, or it said something else."""
    try:
        return msgspec.json.decode(line, type=Stamp)
    except (msgspec.MsgspecError, RecursionError):
        return None


def receive_held(channel: Channel, home: Path, one: Checkpoint, task: JobCommand) -> None:
    """Put a checkpoint that was written elsewhere where a run of this machine looks for it, as its owner."""
    owner = account(task)
    (app, _, job) = one.job.partition("/")
    if "unknown" in owner:
        raise OSError(f"there is no user {task.owner} on this machine")
    top = app_folder(home, app, owner)
    orders = private_folder(one.folder(home / ORDERS))
    with Errand("unpack", top, [job, f"run-{one.run}"], stdin=True) as errand:
        receive_pieces(channel, errand.write)
        if not errand.ended_well():
            why = errand.last_words()
            problem = f"{one.job}: the checkpoint of run {one.run} could not be unpacked"
            raise OSError(f"{problem} ({why})" if why else problem)
    write_whole(orders / BROUGHT, msgspec.to_builtins(one))
    (orders / CLEARED).unlink(missing_ok=True)
