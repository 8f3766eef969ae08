"""Checkpoints travel: from the machine that wrote one to the arbiter, and from there to where it is needed.

What travels is a tar archive of the checkpoint, a file or a folder, and of the result beside it, in pieces,
with a checksum at the end.

Which checkpoint counts: once a run has begun, only what it was given, and what it writes itself. What an
earlier run still writes, on a machine that was cut off, is never looked at.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from astrarium.cluster.live.wire.channel import Channel, WireError

PIECE = 1 << 20  # bytes
_JOB = re.compile(r"\d+-[\w.=+-]*/job-\d+")


class Stamp(NamedTuple):
    """When a checkpoint was written, and its bytes: of two of one run, the larger stamp is the newer."""

    mtime: int
    size: int


class Checkpoint(msgspec.Struct, frozen=True):
    """It lies at an agent or in the arbiter's store. *job*: APP/job-J, as its folders; *kept*: the part of
    its work."""

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
