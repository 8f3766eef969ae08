"""The logs of a job: processes write into pipes, and a thread of the runner writes what comes out of them.

A disk that is full, or slow, costs output, and never a job.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import threading

from .claims import LAST_WORDS
from .job_files import JobFolder
from .pauses import SELDOM, TICK

# bytes that a pipe holds, and that are kept where there is no room
_PIPE = 1 << 18
_HELD_BACK = 1 << 16


class JobLog:
    """The log of one process, which writes into a pipe. What finds no room is held back, the newest of it,
    and written when there is some, after a line that says how much is lost."""

    def __init__(self, folder: JobFolder, name: str) -> None:
        self._folder = folder
        self._name = name
        self._file = -1
        self._held = bytearray()
        self._lost = 0
        self._end = b""
        self.source, self.sink = os.pipe()
        with contextlib.suppress(OSError):  # one user may have only so much of it
            fcntl.fcntl(self.sink, fcntl.F_SETPIPE_SZ, _PIPE)
        self.add(b"")

    def add(self, words: bytes) -> None:
        self._held += words
        self._end = (self._end + words)[-_HELD_BACK:]
        try:
            self.flush()
        except OSError:
            over = max(0, len(self._held) - _HELD_BACK)
            del self._held[:over]
            self._lost += over

    def flush(self) -> None:
        if self._file < 0:
            self._file = self._folder.file(self._name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        if self._lost:
            os.write(self._file, f"\n[{self._lost} bytes are lost: the disk had no room]\n".encode())
            self._lost = 0
        while self._held:
            del self._held[: os.write(self._file, self._held)]

    def last_words(self) -> str:
        """Return the last line that was written."""
        lines = self._end.decode(errors="replace").strip().splitlines()
        return lines[-1].strip()[:LAST_WORDS] if lines else ""


class LogPump(threading.Thread):
    """A thread of the runner that takes what processes write to their logs. It is one of its own since a slow
    disk must not keep a wish to stop from a job."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.logs: dict[int, JobLog] = {}  # by the end of the pipe that is read
        self._over = threading.Event()
        self._poll = select.poll()
        self._open = 0

    def open(self, folder: JobFolder, name: str) -> JobLog:
        log = JobLog(folder, name)
        self.logs[log.source] = log
        self._poll.register(log.source, select.POLLIN)
        self._open += 1
        return log

    def run(self) -> None:
        pause = 0.0
        while not self._over.wait(pause):
            with contextlib.suppress(MemoryError):
                taken = self._taken(SELDOM / 4 if self._open else 0)
                pause = 0 if taken > _PIPE // 2 else TICK / 10 if self._open else TICK  # lines come together
        self._taken(0)

    def finish(self) -> None:
        """Take what is left; processes that have ended can have left no more than a pipe holds."""
        self._over.set()
        self.join()

    def flush(self) -> None:
        for log in self.logs.values():
            log.flush()

    def _taken(self, patience: float) -> int:
        """Take what is there, and return how much the one who wrote most has written."""
        ready = {number for number, _ in self._poll.poll(patience * 1000)}
        most = 0
        for number, log in self.logs.items():
            words = os.read(number, _PIPE) if number in ready else b""
            if number in ready and not words:
                self._poll.unregister(number)
                self._open -= 1
            log.add(words)
            most = max(most, len(words))
        return most
