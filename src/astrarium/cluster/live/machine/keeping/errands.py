"""An errand is done as the owner of a job, by a process of its own: it reads, packs or clears what is there.

`as_owner` starts it, as root where the owner is another user: the first thing that it does is to become that
one, and the second to give up ever being more. What it hands back are plain bytes.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

from .job_files import CHECKPOINT, RESULT, JobFolder, clear_earlier
from .privileges import become, gain_nothing

PIECE = 1 << 20  # bytes


def run(verb: str, words: list[str]) -> None:
    account, top, names, *rest = words
    become(json.loads(account))
    gain_nothing()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ.clear()
    sys.exit(ERRANDS[verb](Path(top), json.loads(names), *rest))


def log_pieces(top: Path, logs: dict[str, int], most: int) -> Iterator[tuple[str, int, bytes]]:
    """Yield what logs have beyond the bytes that one has of each, up to so many at *most*."""
    for path, offset in logs.items():
        *folders, name = path.split("/")
        try:
            with JobFolder.open(top, *folders) as folder:
                descriptor = folder.file(name)
        except OSError:  # not yet there, or no log
            continue
        with open(descriptor, "rb", buffering=0) as file:
            ends = min(most, file.seek(0, os.SEEK_END))
            file.seek(offset)
            while offset < ends and (body := file.read(min(PIECE, ends - offset))):
                yield path, offset, body
                offset += len(body)


def _read(top: Path, _: list[str], most: str) -> int:
    """Write pieces of the logs that stdin names to stdout, each after a line that says of which log it is,
    from where, and how long."""
    logs = json.load(sys.stdin)
    for path, offset, body in log_pieces(top, logs, int(most)):
        head = json.dumps([path, offset, len(body)]).encode()
        sys.stdout.buffer.write(head + b"\n" + body)
        sys.stdout.buffer.flush()
    return 0


def _pack(top: Path, names: list[str]) -> int:
    """Write the stamp of a checkpoint to stdout, as a line, and a tar archive of it and its result; 1: there
    is none, or it changed meanwhile."""
    with JobFolder.open(top, *names) as run:
        before = run.stamp()
        result = run.seen(RESULT)
        if before is None:
            return 1
        print(json.dumps(before), flush=True)
        os.fchdir(run.descriptor)
        with tarfile.open(fileobj=sys.stdout.buffer, mode="w|", format=tarfile.PAX_FORMAT) as archive:
            for name in (CHECKPOINT, *([RESULT] if result is not None else [])):
                archive.add(name)
        return int(run.stamp() != before)


def _unpack(top: Path, names: list[str]) -> int:
    """Put the checkpoint of the tar archive that comes on stdin into the folder of a run."""
    draft = f".brought.{os.getpid()}"
    with JobFolder.open(top, *names, make=True) as run, run.inner(draft, make=True) as inner:
        os.fchdir(inner.descriptor)
        try:
            with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
                if hasattr(tarfile, "tar_filter"):  # Python 3.11.4 and later
                    archive.extraction_filter = tarfile.tar_filter  # links may lead where their owner wants
                archive.extractall(
                    members=(member for member in archive if member.name.split("/")[0] == CHECKPOINT)
                )
            run.remove(CHECKPOINT)
            inner.rename(CHECKPOINT, run, CHECKPOINT)
        finally:
            run.remove(draft)
    return 0


def _clear(top: Path, names: list[str], run: str, keep: str) -> int:
    with JobFolder.open(top, *names) as job:
        clear_earlier(job, int(run), int(keep))
    return 0


ERRANDS: dict[str, Callable[..., int]] = {"read": _read, "pack": _pack, "unpack": _unpack, "clear": _clear}
