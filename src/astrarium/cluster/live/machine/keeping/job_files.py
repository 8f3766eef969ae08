"""This module alone opens what lies in folders that jobs can write.

A folder is held open, and what lies in it is reached from there: no link is followed, only regular files are
read, none of them blocks, and none is read further than a limit. Whoever is root does not use it, but has a
process do so that has become the owner.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

CHECKPOINT = "checkpoint"
PROGRESS = "progress.json"
RESULT = "result.json"
READY = "ready"
# what an elastic job is told, and what it says
GPUS = "gpus.json"
USED = "gpus-used.json"

SMALL = 1 << 12  # bytes of what a job tells
# of a checkpoint, whose stamps are looked at; folders in folders
MOST_FILES = 100_000
DEEPEST = 64
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY

Stamp = tuple[int, int]  # when something was last written, and its bytes


class JobFolder:
    """A folder that a job can write, held open."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def open(cls, top: Path, *names: str, make: bool = False) -> JobFolder:
        """Open a folder below *top*, whose place nobody else can take; *make* what is missing."""
        here = cls(os.open(top, _FOLDER))
        for name in names:
            with here:
                here = here.inner(name, make)
        return here

    def inner(self, name: str, make: bool = False) -> JobFolder:
        if make:
            with contextlib.suppress(FileExistsError):
                os.mkdir(_plain(name), 0o700, dir_fd=self.descriptor)
        return JobFolder(os.open(_plain(name), _FOLDER, dir_fd=self.descriptor))

    def close(self) -> None:
        os.close(self.descriptor)

    def __enter__(self) -> JobFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def names(self) -> list[str]:
        return os.listdir(self.descriptor)

    def seen(self, name: str) -> os.stat_result | None:
        """Return what is there under a name, be it a link; None: nothing, or it cannot be told."""
        try:
            return os.stat(_plain(name), dir_fd=self.descriptor, follow_symlinks=False)
        except OSError:
            return None

    def free(self) -> int:
        """Return how many bytes there is room for."""
        disk = os.fstatvfs(self.descriptor)
        return disk.f_bavail * disk.f_frsize

    def file(self, name: str, flags: int = os.O_RDONLY) -> int:
        """Return the descriptor of a regular file. Nothing else is opened for long: no pipe, no device."""
        descriptor = os.open(_plain(name), flags | _FILE, 0o600, dir_fd=self.descriptor)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise PermissionError(f"{name} is no regular file")
        return descriptor

    def read(self, name: str, most: int = SMALL) -> bytes | None:
        """Return what a small file holds; None: there is none, or it is no such file."""
        try:
            descriptor = self.file(name)
        except OSError:
            return None
        try:
            content = os.read(descriptor, most + 1)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        return content if len(content) <= most else None

    def write(self, name: str, content: bytes) -> None:
        """Write a file so that whoever reads it finds all of it or nothing."""
        draft = f".{_plain(name)}.{os.getpid()}"
        self.remove(draft)
        descriptor = self.file(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            os.write(descriptor, content)
        finally:
            os.close(descriptor)
        self.rename(draft, self, name)

    def rename(self, name: str, to: JobFolder, new: str) -> None:
        os.rename(_plain(name), _plain(new), src_dir_fd=self.descriptor, dst_dir_fd=to.descriptor)

    def remove(self, name: str) -> None:
        """Remove a file, a link or a folder with all that is in it."""
        status = self.seen(name)
        with contextlib.suppress(OSError, RecursionError):  # it is only in the way: the next run tries again
            if status is not None and stat.S_ISDIR(status.st_mode):
                shutil.rmtree(_plain(name), ignore_errors=True, dir_fd=self.descriptor)
            elif status is not None:
                os.unlink(_plain(name), dir_fd=self.descriptor)

    def stamp(self) -> Stamp | None:
        """Return that of the checkpoint, a file or a folder, with the result beside it."""
        checkpoint = self.seen(CHECKPOINT)
        if checkpoint is None:
            return None
        all_of_it = [checkpoint]
        if stat.S_ISDIR(checkpoint.st_mode):
            all_of_it += islice(self._within(CHECKPOINT), MOST_FILES)
        result = self.seen(RESULT)
        if result is not None and stat.S_ISREG(result.st_mode):
            all_of_it.append(result)
        return max(status.st_mtime_ns for status in all_of_it), sum(status.st_size for status in all_of_it)

    def _within(self, name: str, depth: int = 0) -> Iterator[os.stat_result]:
        with contextlib.suppress(OSError), self.inner(name) as folder:  # it is being written, or is gone
            for inner_name in folder._listed():
                seen = folder.seen(inner_name)
                if seen is not None:
                    yield seen
                if seen is not None and stat.S_ISDIR(seen.st_mode) and depth < DEEPEST:
                    yield from folder._within(inner_name, depth + 1)

    def _listed(self) -> Iterator[str]:
        """Yield names without holding all of them: there may be millions."""
        with os.scandir(self.descriptor) as entries:
            yield from (entry.name for entry in entries)


def clear_earlier(job: JobFolder, run: int, keep: int) -> None:
    """Clear away the checkpoints of runs of a job before one of them, but for that of the run to *keep*."""
    for name in job.names():
        number = name.removeprefix("run-")
        if not number.isdecimal() or int(number) >= run:
            continue
        with contextlib.suppress(OSError), job.inner(name) as earlier:
            drafts = [one for one in earlier.names() if one.startswith(f".{CHECKPOINT}.")]
            for one in (*drafts, *([CHECKPOINT] if int(number) != keep else [])):
                earlier.remove(one)


def _plain(name: str) -> str:
    if "/" in name or name in ("", ".", "..") or "\0" in name:
        raise PermissionError(f"{name!r} is no plain name of a file")
    return name
