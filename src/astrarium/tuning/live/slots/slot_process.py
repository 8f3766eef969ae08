"""A slot's process, as the pool sees it that started it."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic


class SlotProcess:
    """The pool makes a slot process before the process is up. *runs* counts the runs on it; *last_sign* is
    when it last gave a sign of life."""

    def __init__(self, gpu: int, pipe: Connection) -> None:
        self.gpu = gpu
        self.pipe = pipe
        self.pid = 0
        self.session = 0
        self.handle: int | None = None  # of the process: its id could be used again
        self.last_words = "its process ended"
        self.runs = 0
        self.warm = False
        self.last_sign = monotonic()

    def came_up(self, pid: int) -> None:
        self.pid = pid
        with suppress(OSError):
            self.handle = os.pidfd_open(pid)
            self.session = os.getsid(pid)

    @property
    def over(self) -> bool:
        """Tell whether the process has ended, whoever still holds its pipe."""
        return self.handle is not None and _ended(self.handle, 0)

    def end(self) -> None:
        """Kill the process and all that it has started, without waiting. A process that is not up yet ends
        when it finds the pipe closed."""
        if self.handle is not None:
            alive = not self.over or any(_left_of(self.pid, self.session))
            with suppress(ProcessLookupError, PermissionError):
                if alive:
                    os.killpg(self.pid, signal.SIGKILL)
        self.pipe.close()

    def wait(self, seconds: float) -> None:
        if self.handle is not None:
            _ended(self.handle, seconds)
            os.close(self.handle)
            self.handle = None


def _left_of(group: int, session: int) -> Iterator[int]:
    """Yield the processes of a group whose first process is gone. The session, which is the fork server's,
    rules out that its number belongs to another process by now."""
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            _, _, group_of, session_of = file.read_text().rpartition(")")[2].split()[:4]
            if (int(group_of), int(session_of)) == (group, session):
                yield int(file.parent.name)


def _ended(handle: int, seconds: float) -> bool:
    """Tell whether the process ends within so many seconds."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(int(seconds * 1000)))
