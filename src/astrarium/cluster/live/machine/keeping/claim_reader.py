"""The runner reads what a job claims in the files of its folder, as the owner of the job."""

from __future__ import annotations

import json
import time
from typing import Any

from .claims import checked_number, checked_part, checked_words
from .job_files import PROGRESS, READY, USED, JobFolder, Stamp

LOOK = 0.25  # seconds between looks at a checkpoint
LITTLE = 1 << 20  # free bytes below which a disk is taken to be full
FULL = "the disk has no room for its checkpoints"


class ClaimReader:
    """What a job tells by the files of its folder: how far it is, and how far its checkpoint (*stamp*), since
    when it is up, as which run it uses its GPUs, and what troubles it."""

    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder
        self._looked_at = float("-inf")
        self._read = dict[str, Any]()
        self._stamp: Stamp | None = None
        self._full = ""

    def look(self, last: bool = False) -> dict[str, Any]:
        progress = self._json(PROGRESS)
        used = self._json(USED)
        ready = self._folder.seen(READY)
        if last or time.monotonic() - self._looked_at > LOOK:
            self._looked_at = time.monotonic()
            self._stamp = self._folder.stamp()
            self._full = FULL if self._folder.free() < LITTLE else ""
        return {
            "progress": checked_part(progress.get("progress")),
            "kept": checked_part(progress.get("kept")),
            "trouble": checked_words(progress.get("trouble")) or self._full,
            "used": checked_number(used.get("run")) or 0,
            "ready": ready.st_mtime if ready is not None else None,
            "stamp": self._stamp,
        }

    def _json(self, name: str) -> dict[str, Any]:
        """Return what a small file of JSON holds, which is read when it has changed."""
        seen = self._folder.seen(name)
        mark = (seen.st_ino, seen.st_mtime_ns, seen.st_size) if seen is not None else None
        if self._read.get(name, (None, {}))[0] != mark:
            self._read[name] = mark, _decoded(self._folder.read(name))
        content: dict[str, Any] = self._read.get(name, (None, {}))[1]
        return content


def _decoded(content: bytes | None) -> dict[str, Any]:
    try:
        decoded = json.loads(content or b"{}")
    except (ValueError, RecursionError):
        return {}
    return decoded if isinstance(decoded, dict) else {}
