"""The arbiter has copies of the newest checkpoints, and knows what each job's last run was given.

It keeps an archive as it came, and never unpacks it.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec

from astrarium.cluster.live.backend import Order
from astrarium.cluster.live.backends.hosts.checkpoints import Checkpoint, receive_pieces
from astrarium.cluster.live.machine.folders import ORDERS, job_name, read_file
from astrarium.cluster.live.machine.keeping.records import CLOSED, mark, private_folder, write_whole
from astrarium.cluster.live.wire.channel import Channel

OVERHEAD = 1 << 26  # bytes that an archive may have beyond twice the checkpoint
# seconds until a copy that was refused is asked for again
SHORTEST_WAIT = 10.0
LONGEST_WAIT = 600.0
LEAST_ROOM = 1 << 30  # bytes of the arbiter's disk that copies leave free, or a twentieth of it

BEGUN = "begun.json"
COPY = "copy.json"
COPIES = "copies"


class Begun(msgspec.Struct, frozen=True):
    """A run that was ordered, and the checkpoint that it was given."""

    order: Order
    given: Checkpoint | None = None


class CopyStore:
    """The checkpoints that lie at the arbiter, for all threads of it."""

    def __init__(self, home: Path) -> None:
        self._orders = home / ORDERS
        self._tars = home / COPIES
        self._lock = threading.Lock()
        self._begun: dict[str, Begun] = {}  # the last run of each job
        self._copies: dict[str, Checkpoint] = {}
        self._waits: dict[str, tuple[float, float]] = {}  # until when, of jobs whose copies found no room
        for path in self._orders.glob(f"*/job-*/run-*/{BEGUN}"):
            if (begun := read_file(path, Begun)) is not None:
                self._take_begun(begun)
        for path in self._tars.glob(f"*/job-*/run-*/{COPY}"):
            copy = read_file(path, Checkpoint)
            if copy is not None and self._archive(copy).exists():
                self._copies[copy.job] = max(copy, self._copies.get(copy.job, copy), key=lambda one: one.age)

    def newest(self, job: str) -> Checkpoint | None:
        return self._copies.get(job)

    def counts(self, one: Checkpoint) -> bool:
        """Return whether a checkpoint is of the job's last run, or the one that this was given."""
        last = self._begun.get(one.job)
        if last is None:
            return False
        return one.run == last.order.key.run or (last.given is not None and one.name == last.given.name)

    def is_old(self, one: Checkpoint) -> bool:
        """Return whether a later run has begun, and from another checkpoint."""
        last = self._begun.get(one.job)
        return last is not None and one.run < last.order.key.run and not self.counts(one)

    def begin(self, order: Order, checkpoint: Checkpoint | None) -> None:
        """Write down that a run begins: from now on only its checkpoint counts, and what it was given."""
        begun = Begun(order, checkpoint)
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

    def receive(self, channel: Channel, one: Checkpoint) -> None:
        """Take a checkpoint that a machine sends, in the place of older ones of its job."""
        try:
            self._receive(channel, one)
            self._waits.pop(one.job, None)
        except OSError:
            _, before = self._waits.get(one.job, (0.0, SHORTEST_WAIT / 2))
            wait = min(2 * before, LONGEST_WAIT)
            self._waits[one.job] = time.monotonic() + wait, wait
            raise

    def waits(self, one: Checkpoint) -> bool:
        """Return whether a checkpoint of this job was refused a moment ago, and is not asked for yet."""
        return time.monotonic() < self._waits.get(one.job, (0.0, 0.0))[0]

    def _receive(self, channel: Channel, one: Checkpoint) -> None:
        if one.stamp.size > (space := self._space()):
            raise OSError(errno.ENOSPC, f"a checkpoint of {one.stamp.size} bytes, and room for {space}")
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

    def _space(self) -> int:
        disk = os.statvfs(private_folder(self._tars))
        return max(0, disk.f_bavail * disk.f_frsize - _reserve(disk))

    def take_kept(self, one: Checkpoint) -> None:
        """Hear how much of the work a checkpoint holds, which may be told after it was copied."""
        with self._lock:
            known = self._copies.get(one.job)
            if known is not None and known.name == one.name and known.kept < one.kept:
                write_whole(one.folder(self._tars) / COPY, msgspec.to_builtins(one))
                self._copies[one.job] = one

    def archive(self, one: Checkpoint) -> IO[bytes]:
        return self._archive(one).open("rb")

    def _take(self, one: Checkpoint, draft: Path) -> None:
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

    def _archive(self, one: Checkpoint) -> Path:
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
