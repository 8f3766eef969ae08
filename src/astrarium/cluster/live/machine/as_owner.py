"""What lies in the folder of an app is read, packed and cleared by a process of its owner's.

It has so much time, hands plain bytes back, and whatever it finds there troubles nobody but the owner.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple

from astrarium.cluster.live.machine.folders import APPS, ORDERS, read_file
from astrarium.cluster.live.machine.keeping import errands
from astrarium.cluster.live.machine.keeping.claims import checked_words
from astrarium.cluster.live.machine.keeping.records import ORDER
from astrarium.cluster.live.machine.owners import owner_of

KEEPING = Path(errands.__file__).with_name("__main__.py")
SILENCE = 30.0  # seconds that an errand may be silent
SLOWEST = 1 << 20  # bytes in a second, as long as it is waited for: its owner may halt it again and again
LONGEST_LOG = 1 << 30  # bytes of one log that are ever handed on
# bytes; of these more than a pipe has no room for
_LONGEST_HEAD = 1 << 12
_LONGEST_WORDS = 1 << 16


class Errand:
    """A process that does something in the folder of an app, as its owner."""

    def __init__(self, verb: str, app: Path, about: Any, *words: str, stdin: bool = False) -> None:
        account = json.dumps(owner_of(app))
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(KEEPING), verb, account, str(app), json.dumps(about), *words],
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, cwd="/", start_new_session=True,
        )  # fmt: skip
        self._held = b""
        self._waited = 0.0
        self._moved = 0

    def __enter__(self) -> Errand:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
        with suppress(subprocess.TimeoutExpired):  # a disk of its owner's that never answers
            self._process.wait(SILENCE)

    def read(self, count: int) -> bytes:
        """Return what the errand hands back, as it comes; nothing when it has ended."""
        held = self._held[:count]
        self._held = self._held[count:]
        return held or self._read(count)

    def exactly(self, count: int) -> bytes:
        content = b""
        while len(content) < count:
            piece = self.read(count - len(content))
            if not piece:
                raise OSError("what was read of a job ends too early")
            content += piece
        return content

    def line(self) -> bytes:
        """Return a line, without its end; nothing when there is none any more."""
        while b"\n" not in self._held and len(self._held) < _LONGEST_HEAD:
            piece = self._read(errands.PIECE)
            if not piece:
                break
            self._held += piece
        line, _, self._held = self._held.partition(b"\n")
        return line

    def write(self, content: bytes) -> None:
        assert self._process.stdin is not None
        view = memoryview(content)
        os.set_blocking(self._process.stdin.fileno(), False)
        while view:
            self._wait_for(self._process.stdin, select.POLLOUT)
            written = os.write(self._process.stdin.fileno(), view)
            self._moved += written
            view = view[written:]

    def close_input(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()

    def ended_well(self, seconds: float = SILENCE) -> bool:
        """Return whether all that was wanted is done; *seconds*: how long that may still take."""
        self.close_input()
        try:
            return self._process.wait(seconds) == 0
        except subprocess.TimeoutExpired:
            return False

    def last_words(self) -> str:
        """Return why an errand that has ended failed, as far as it has said."""
        assert self._process.stderr is not None
        if not _ready(self._process.stderr, select.POLLIN, 0):
            return ""
        lines = os.read(self._process.stderr.fileno(), _LONGEST_WORDS).decode(errors="replace").splitlines()
        return checked_words(lines[-1].strip()) if lines else ""

    def _read(self, count: int) -> bytes:
        assert self._process.stdout is not None
        self._wait_for(self._process.stdout, select.POLLIN)
        piece = os.read(self._process.stdout.fileno(), count)
        self._moved += len(piece)
        return piece

    def _wait_for(self, file: IO[bytes], what: int) -> None:
        """Wait until the errand goes on; one that is silent, or slow in all, is not waited for any longer."""
        began = time.monotonic()
        ready = _ready(file, what, SILENCE)
        self._waited += time.monotonic() - began
        if not ready or self._waited > SILENCE + self._moved / SLOWEST:
            raise OSError(f"an errand for a job did not go on: {self._moved} bytes in {self._waited:.0f} s")


def _ready(file: IO[bytes], what: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(file, what)
    return bool(poll.poll(seconds * 1000))


class LogPart(NamedTuple):
    """Bytes of a log that were read as its owner; *path* is below the folder of the app."""

    path: str
    offset: int
    body: bytes


def log_names(home: Path, app: str) -> list[str]:
    """Return the logs that the jobs of an app have, by the orders that were given."""
    top = home / ORDERS / app
    names = list[str]()
    for path in top.glob(f"job-*/run-*/part-*/{ORDER}"):
        order = read_file(path, dict[str, Any]) or {}
        part = path.parent.relative_to(top).as_posix()
        names += [f"{part}/{process['log']}" for process in order.get("processes", [])]
    return names


def read_logs(home: Path, app: str, logs: Mapping[str, int]) -> Iterator[LogPart]:
    """Yield what logs have beyond the bytes that one has of each, read as the owner of the app."""
    top = home / APPS / app
    if not logs or not top.exists():
        return
    if not owner_of(top):
        yield from (LogPart(*piece) for piece in errands.log_pieces(top, dict(logs), LONGEST_LOG))
        return
    with Errand("read", top, [], str(LONGEST_LOG), stdin=True) as errand:
        errand.write(json.dumps(dict(logs)).encode())
        errand.close_input()
        while head := errand.line():
            path, offset, size = json.loads(head)
            body = errand.exactly(min(int(size), errands.PIECE))
            if path in logs:
                yield LogPart(path, int(offset), body)


def clear_checkpoints(home: Path, job: str, before: int, keep: int = 0) -> None:
    """Clear away the checkpoints of runs of a job before one, but for that of the run to *keep*."""
    app, _, name = job.partition("/")
    if (home / APPS / app).exists():
        with Errand("clear", home / APPS / app, [name], str(before), str(keep)) as errand:
            errand.ended_well()
