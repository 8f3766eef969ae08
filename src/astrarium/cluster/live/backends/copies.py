"""Checkpoints travel: from the machine that wrote one to the arbiter, and from there to where it is needed.

What travels is a tar archive of the checkpoint, a file or a folder, and of the result beside it, in pieces,
with a checksum at the end. The arbiter keeps the archive as it is, and never unpacks it.

Which checkpoint counts: once a run has begun, only what it was given, and what it writes itself. What an
earlier run still writes, on a machine that was cut off, is never looked at.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

import msgspec

from astrarium.cluster.live.backend import JobCommand, Order
from astrarium.cluster.live.backends.wire import Channel, WireError
from astrarium.cluster.live.machine.as_owner import Errand, clear_checkpoints
from astrarium.cluster.live.machine.folders import APPS, ORDERS, job_name, read_file, read_told
from astrarium.cluster.live.machine.keeping.records import CLOSED, mark, private_folder, write_whole
from astrarium.cluster.live.machine.owners import account, app_folder

PIECE = 1 << 20  # bytes
OVERHEAD = 1 << 26  # bytes that an archive may have beyond twice the checkpoint
# seconds until a copy that was refused is asked for again
SHORTEST_WAIT = 10.0
LONGEST_WAIT = 600.0
LEAST_ROOM = 1 << 30  # bytes of the arbiter's disk that copies leave free, or a twentieth of it
_JOB = re.compile(r"\d+-[\w.=+-]*/job-\d+")
_RUN = re.compile(r"run-(\d+)")


class Stamp(NamedTuple):
    """When a checkpoint was written, and its bytes: of two of one run, the larger stamp is the newer."""

    mtime: int
    size: int


class Held(msgspec.Struct, frozen=True):
    """A checkpoint that lies somewhere. *job*: APP/job-J, as its folders; *kept*: the part of its work."""

    job: str
    run: int
    stamp: Stamp
    kept: float = 0.0

    def __post_init__(self) -> None:
        if not _JOB.fullmatch(self.job) or self.run < 1:
            raise ValueError(f"a job's folder and run, not {self.job!r} and {self.run}")

    @property
    def name(self) -> tuple[str, int, Stamp]:
        return self.job, self.run, self.stamp

    @property
    def age(self) -> tuple[int, Stamp]:
        """Return what grows with every newer checkpoint of the job."""
        return self.run, self.stamp

    def folder(self, tree: Path) -> Path:
        return tree / self.job / f"run-{self.run}"


# On a machine: checkpoints as jobs write them, or as they were brought. What is known of them is what their
# keepers were told, and what was written down when they were brought: never what lies beside them.

# in the folder of a run's orders
BROUGHT = "brought.json"
CLEARED = "cleared"


def held(home: Path, job: str, run: int) -> Held | None:
    """Return the checkpoint of a run that lies here."""
    folder = home / ORDERS / job / f"run-{run}"
    if (folder / CLEARED).exists():
        return None
    brought = read_file(folder / BROUGHT, Held)
    told = read_told(folder / "part-0")
    return brought or (Held(job, run, Stamp(*told.stamp), told.kept) if told.stamp is not None else None)


def all_held(home: Path) -> Iterator[Held]:
    """Yield the newest checkpoint of every job that has one here."""
    for folder in home.glob(f"{ORDERS}/*/job-*"):
        job = folder.relative_to(home / ORDERS).as_posix()
        found = (held(home, job, run) for run in sorted(_runs(folder), reverse=True))
        if newest := next((each for each in found if each is not None), None):
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
    for each in _runs(home / ORDERS / job):
        if each < run and each != keep:
            folder = home / ORDERS / job / f"run-{each}"
            mark(folder / CLEARED)
            (folder / BROUGHT).unlink(missing_ok=True)


@contextmanager
def packed(home: Path, one: Held) -> Iterator[tuple[Held, Callable[[Channel], None]]]:
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


def receive_held(channel: Channel, home: Path, one: Held, task: JobCommand) -> None:
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
            told = f"{one.job}: the checkpoint of run {one.run} could not be unpacked"
            raise OSError(f"{told} ({why})" if why else told)
    write_whole(orders / BROUGHT, msgspec.to_builtins(one))
    (orders / CLEARED).unlink(missing_ok=True)


def send_pieces(
    channel: Channel, read: Callable[[int], bytes], is_whole: Callable[[], bool] = lambda: True
) -> None:
    digest = hashlib.sha256()
    while piece := read(PIECE):
        digest.update(piece)
        channel.send_bytes(piece)
    if not is_whole():
        raise WireError("a checkpoint changed while it was sent")
    channel.send_bytes(b"")
    channel.send_bytes(digest.digest())


def receive_pieces(channel: Channel, write: Callable[[bytes], object]) -> None:
    """Write what comes in pieces; all of it has come, as it was, when this returns."""
    digest = hashlib.sha256()
    while piece := channel.receive_bytes():
        digest.update(piece)
        write(piece)
    if channel.receive_bytes() != digest.digest():
        raise WireError("a checkpoint came with a wrong checksum")


# At the arbiter: copies of the newest checkpoints, and what each job's last run was given.

BEGUN = "begun.json"
COPY = "copy.json"
COPIES = "copies"


class Begun(msgspec.Struct, frozen=True):
    """A run that was ordered, and the checkpoint that it was given."""

    order: Order
    given: Held | None = None


class CopyStore:
    """The checkpoints that lie at the arbiter, for all threads of it."""

    def __init__(self, home: Path) -> None:
        self._orders = home / ORDERS
        self._tars = home / COPIES
        self._lock = threading.Lock()
        self._begun: dict[str, Begun] = {}  # the last run of each job
        self._copies: dict[str, Held] = {}
        self._waits: dict[str, tuple[float, float]] = {}  # until when, of jobs whose copies found no room
        for path in self._orders.glob(f"*/job-*/run-*/{BEGUN}"):
            if (begun := read_file(path, Begun)) is not None:
                self._take_begun(begun)
        for path in self._tars.glob(f"*/job-*/run-*/{COPY}"):
            copy = read_file(path, Held)
            if copy is not None and self._archive(copy).exists():
                self._copies[copy.job] = max(copy, self._copies.get(copy.job, copy), key=lambda one: one.age)

    def newest(self, job: str) -> Held | None:
        return self._copies.get(job)

    def counts(self, one: Held) -> bool:
        """Return whether a checkpoint is of the job's last run, or the one that this was given."""
        last = self._begun.get(one.job)
        if last is None:
            return False
        return one.run == last.order.key.run or (last.given is not None and one.name == last.given.name)

    def is_old(self, one: Held) -> bool:
        """Return whether a later run has begun, and from another checkpoint."""
        last = self._begun.get(one.job)
        return last is not None and one.run < last.order.key.run and not self.counts(one)

    def begin(self, order: Order, given: Held | None) -> None:
        """Write down that a run begins: from now on only its checkpoint counts, and what it was given."""
        begun = Begun(order, given)
        folder = private_folder(self._folder(order))
        with self._lock:
            write_whole(folder / BEGUN, msgspec.to_builtins(begun))
            self._take_begun(begun)

    def close(self, order: Order) -> None:
        if self._folder(order).exists():
            mark(self._folder(order) / CLOSED)

    def unclosed(self) -> Iterator[Order]:
        """Yield the orders of an arbiter before us whose end is in no books yet."""
        for path in self._orders.glob(f"*/job-*/run-*/{BEGUN}"):
            begun = None if (path.parent / CLOSED).exists() else read_file(path, Begun)
            if begun is not None:
                yield begun.order

    def receive(self, channel: Channel, one: Held) -> None:
        """Take a checkpoint that a machine sends, in the place of older ones of its job."""
        try:
            self._receive(channel, one)
            self._waits.pop(one.job, None)
        except OSError:
            _, before = self._waits.get(one.job, (0.0, SHORTEST_WAIT / 2))
            wait = min(2 * before, LONGEST_WAIT)
            self._waits[one.job] = time.monotonic() + wait, wait
            raise

    def waits(self, one: Held) -> bool:
        """Return whether a checkpoint of this job was refused a moment ago, and is not asked for yet."""
        return time.monotonic() < self._waits.get(one.job, (0.0, 0.0))[0]

    def _receive(self, channel: Channel, one: Held) -> None:
        if one.stamp.size > (room := self._room()):
            raise OSError(errno.ENOSPC, f"a checkpoint of {one.stamp.size} bytes, and room for {room}")
        left = 2 * one.stamp.size + OVERHEAD
        folder = private_folder(one.folder(self._tars))
        draft = folder / f".{COPY}.{threading.get_ident()}"
        try:
            with draft.open("wb") as file:
                receive_pieces(channel, lambda piece: write_within(file, piece, left))
                file.flush()
                os.fsync(file.fileno())
            with self._lock:
                self._take(one, draft)
        finally:
            draft.unlink(missing_ok=True)

    def _room(self) -> int:
        disk = os.statvfs(private_folder(self._tars))
        return max(0, disk.f_bavail * disk.f_frsize - _reserve(disk))

    def take_kept(self, one: Held) -> None:
        """Hear how much of the work a checkpoint holds, which may be told after it was copied."""
        with self._lock:
            known = self._copies.get(one.job)
            if known is not None and known.name == one.name and known.kept < one.kept:
                write_whole(one.folder(self._tars) / COPY, msgspec.to_builtins(one))
                self._copies[one.job] = one

    def archive(self, one: Held) -> IO[bytes]:
        return self._archive(one).open("rb")

    def _take(self, one: Held, draft: Path) -> None:
        known = self._copies.get(one.job)
        if not self.counts(one) or (known is not None and known.age > one.age):
            return
        draft.replace(self._archive(one))
        write_whole(one.folder(self._tars) / COPY, msgspec.to_builtins(one))
        self._copies[one.job] = one
        for path in (self._tars / one.job).glob("run-*/copy-*.tar"):
            if path != self._archive(one):
                path.unlink(missing_ok=True)

    def _take_begun(self, begun: Begun) -> None:
        job = job_name(begun.order)
        last = self._begun.get(job)
        if last is None or last.order.key.run <= begun.order.key.run:
            self._begun[job] = begun

    def _archive(self, one: Held) -> Path:
        return one.folder(self._tars) / f"copy-{one.stamp.mtime}-{one.stamp.size}.tar"

    def _folder(self, order: Order) -> Path:
        return self._orders / job_name(order) / f"run-{order.key.run}"


def write_within(file: IO[bytes], piece: bytes, most: int = 1 << 62) -> None:
    """Write a piece of a copy or a log, of *most* bytes in all, as long as the disk keeps room for the
    arbiter's own books."""
    if file.tell() + len(piece) > most:
        raise OSError(errno.EFBIG, f"more than {most} bytes: it is larger than it was said to be")
    disk = os.fstatvfs(file.fileno())
    reserve = _reserve(disk)
    if disk.f_bavail * disk.f_frsize < reserve + len(piece):
        raise OSError(errno.ENOSPC, f"the arbiter keeps {reserve} bytes for itself: no room for more")
    file.write(piece)


def _reserve(disk: os.statvfs_result) -> int:
    """Return the bytes of a disk that are the arbiter's own."""
    return min(LEAST_ROOM, disk.f_blocks * disk.f_frsize // 20)
