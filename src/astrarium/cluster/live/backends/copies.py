"""Checkpoints travel: from the machine that wrote one to the arbiter, and from there to where it is needed.

What travels is a tar archive of the checkpoint, a file or a folder, and of the result beside it, in pieces,
with a checksum at the end. The arbiter keeps the archive as it is, and never unpacks it.

Which checkpoint counts: once a run has begun, only what it was given, and what it writes itself. What an
earlier run still writes, on a machine that was cut off, is never looked at.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec

from astrarium.cluster.live.backend import JobCommand, Order
from astrarium.cluster.live.backends.wire import Channel, WireError
from astrarium.cluster.live.machine.keeper import CLOSED, write_whole
from astrarium.cluster.live.machine.owners import account, credentials, hand_over
from astrarium.cluster.live.machine.session import (
    CHECKPOINT,
    RESULT,
    clear,
    job_folder,
    read_file,
    read_progress,
)

PIECE = 1 << 20  # bytes
_JOB = re.compile(r"apps/\d+-[\w.=+-]*/job-\d+")
_RUN = re.compile(r"run-(\d+)")


class Stamp(NamedTuple):
    """When a checkpoint was written, and its bytes: of two of one run, the larger stamp is the newer."""

    mtime: int
    size: int


class Held(msgspec.Struct, frozen=True):
    """A checkpoint that lies somewhere. *job*: the folder of the job; *kept*: the part of its work."""

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

    def folder(self, home: Path) -> Path:
        return home / self.job / f"run-{self.run}"


def job_of(order: Order) -> str:
    return job_folder(Path(), order.key.app, order.app, order.key.job).as_posix()


# On a machine: checkpoints as jobs write them, or as they were brought.

BROUGHT = "brought.json"  # beside a checkpoint that was written elsewhere


def held(home: Path, job: str, run: int) -> Held | None:
    """Return the checkpoint of a run that lies here. What was kept is read first: it is never too much."""
    folder = home / job / f"run-{run}"
    brought, kept = read_file(folder / BROUGHT, Held), read_progress(folder).kept
    try:
        return brought or Held(job, run, _stamp(folder), kept)
    except OSError:
        return None


def _stamp(folder: Path) -> Stamp:
    found = [(folder / CHECKPOINT).lstat()]
    for top, folders, files in os.walk(folder / CHECKPOINT):
        found += [os.lstat(os.path.join(top, name)) for name in (*folders, *files)]
    if (folder / RESULT).is_file():
        found.append((folder / RESULT).lstat())
    return Stamp(max(each.st_mtime_ns for each in found), sum(each.st_size for each in found))


def all_held(home: Path) -> Iterator[Held]:
    """Yield the newest checkpoint of every job that has one here."""
    for folder in home.glob("apps/*/job-*"):
        job = folder.relative_to(home).as_posix()
        found = (held(home, job, run) for run in sorted(_runs(folder), reverse=True))
        if newest := next((each for each in found if each is not None), None):
            yield newest


def _runs(job: Path) -> list[int]:
    named = (_RUN.fullmatch(path.name) for path in job.glob("run-*"))
    return [int(match[1]) for match in named if match]


def clear_before(home: Path, job: str, run: int, resume: str = "") -> None:
    """Clear away the checkpoints of earlier runs, but for the one from which this run resumes."""
    for each in _runs(home / job):
        path = home / job / f"run-{each}" / CHECKPOINT
        for draft in path.parent.glob(f".{CHECKPOINT}.*") if each < run else ():  # of a run that was ended
            clear(draft)
        if each < run and str(path) != resume:
            clear(path)
            path.with_name(BROUGHT).unlink(missing_ok=True)


def send_held(channel: Channel, home: Path, one: Held) -> None:
    """Send a checkpoint of this machine; the other end throws it away if it changes meanwhile. Root reads it
    as who has written it: a link to what only root may read leads nowhere."""
    folder = one.folder(home)
    seen = (folder / CHECKPOINT).lstat()
    who = {"user": seen.st_uid, "group": seen.st_gid, "extra_groups": []} if os.geteuid() == 0 else {}
    names = [CHECKPOINT, *([RESULT] if (folder / RESULT).is_file() else [])]
    with _tar("-c", "--format=posix", "-C", str(folder), *names, stdout=subprocess.PIPE, **who) as tar:
        send_pieces(channel, tar.stdout.read, lambda: _ended_well(tar) and _stamp(folder) == one.stamp)


def receive_held(channel: Channel, home: Path, one: Held, task: JobCommand) -> None:
    """Put a checkpoint that was written elsewhere where a run of this machine looks for it."""
    folder, owner = one.folder(home), account(task)
    draft, who = folder / f".{BROUGHT}.{threading.get_ident()}", credentials(owner)
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    hand_over(home, folder, owner)
    if who:
        os.chown(draft, who["user"], who["group"])
    try:
        with _tar("-x", "-C", str(draft), CHECKPOINT, stdin=subprocess.PIPE, **who) as tar:
            receive_pieces(channel, tar.stdin.write)
            tar.stdin.close()
            if not _ended_well(tar):
                raise OSError(f"{one.job}: the checkpoint of run {one.run} could not be unpacked")
        clear(folder / CHECKPOINT)
        (draft / CHECKPOINT).rename(folder / CHECKPOINT)
        write_whole(folder / BROUGHT, msgspec.to_builtins(one))
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _tar(*words: str, **options: Any) -> Any:
    return subprocess.Popen(["tar", *words[:1], "-f", "-", *words[1:]], stderr=subprocess.DEVNULL, **options)


def _ended_well(tar: Any) -> bool:
    return bool(tar.wait() == 0)


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

BEGUN, COPY = "begun.json", "copy.json"


class Begun(msgspec.Struct, frozen=True):
    """A run that was ordered, and the checkpoint that it was given."""

    order: Order
    given: Held | None = None


class CopyStore:
    """The checkpoints that lie at the arbiter, for all threads of it."""

    def __init__(self, home: Path) -> None:
        self._home, self._lock = home, threading.Lock()
        self._begun: dict[str, Begun] = {}  # the last run of each job
        self._copies: dict[str, Held] = {}
        for path in home.glob(f"apps/*/job-*/run-*/{BEGUN}"):
            if (begun := read_file(path, Begun)) is not None:
                self._take_begun(begun)
        for path in home.glob(f"apps/*/job-*/run-*/{COPY}"):
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
        folder = self._home / job_of(order) / f"run-{order.key.run}"
        folder.mkdir(parents=True, exist_ok=True)
        with self._lock:
            write_whole(folder / BEGUN, msgspec.to_builtins(begun))
            self._take_begun(begun)

    def close(self, order: Order) -> None:
        folder = self._home / job_of(order) / f"run-{order.key.run}"
        if folder.exists():
            (folder / CLOSED).touch()

    def unclosed(self) -> Iterator[Order]:
        """Yield the orders of an arbiter before us whose end is in no books yet."""
        for path in self._home.glob(f"apps/*/job-*/run-*/{BEGUN}"):
            begun = None if (path.parent / CLOSED).exists() else read_file(path, Begun)
            if begun is not None:
                yield begun.order

    def receive(self, channel: Channel, one: Held) -> None:
        """Take a checkpoint that a machine sends, in the place of older ones of its job."""
        folder = one.folder(self._home)
        folder.mkdir(parents=True, exist_ok=True)
        draft = folder / f".{COPY}.{threading.get_ident()}"
        try:
            with draft.open("wb") as file:
                receive_pieces(channel, file.write)
                file.flush()
                os.fsync(file.fileno())
            with self._lock:
                self._take(one, draft)
        finally:
            draft.unlink(missing_ok=True)

    def take_kept(self, one: Held) -> None:
        """Hear how much of the work a checkpoint holds, which may be told after it was copied."""
        with self._lock:
            known = self._copies.get(one.job)
            if known is not None and known.name == one.name and known.kept < one.kept:
                write_whole(one.folder(self._home) / COPY, msgspec.to_builtins(one))
                self._copies[one.job] = one

    def archive(self, one: Held) -> IO[bytes]:
        return self._archive(one).open("rb")

    def _take(self, one: Held, draft: Path) -> None:
        known = self._copies.get(one.job)
        if not self.counts(one) or (known is not None and known.age > one.age):
            return
        draft.replace(self._archive(one))
        write_whole(one.folder(self._home) / COPY, msgspec.to_builtins(one))
        self._copies[one.job] = one
        for path in (self._home / one.job).glob("run-*/copy-*.tar"):
            if path != self._archive(one):
                path.unlink(missing_ok=True)

    def _take_begun(self, begun: Begun) -> None:
        job = job_of(begun.order)
        last = self._begun.get(job)
        if last is None or last.order.key.run <= begun.order.key.run:
            self._begun[job] = begun

    def _archive(self, one: Held) -> Path:
        return one.folder(self._home) / f"copy-{one.stamp.mtime}-{one.stamp.size}.tar"
