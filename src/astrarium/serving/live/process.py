"""The process of a worker: started without a terminal, with one end of a socket, and watched for its end."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from astrarium.serving.live.backends.contract import Place
from astrarium.serving.live.messages import LARGEST_MESSAGE
from astrarium.serving.live.shared_memory import SharedMemory

_PR_SET_CHILD_SUBREAPER = 36


class Death(NamedTuple):
    """How a worker ended; *by_its_work*: what it ran may have broken it, else somebody outside ended it."""

    reason: str
    by_its_work: bool = True


class AdoptedProcess:
    """A process that was not started here, but has become a child of ours; it has what Popen has."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code = None if pid else 0

    def poll(self) -> int | None:
        return self._waited(os.WNOHANG)

    def wait(self) -> int:
        code = self._waited(0)
        assert code is not None
        return code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _waited(self, options: int) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, options)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code


def adopt_orphans() -> None:
    """Become the parent of processes whose parents end, if these were started below this one."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return our end of a worker's connection, which does not block, and the worker's."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * LARGEST_MESSAGE)
    ours.setblocking(False)
    return ours, theirs


@dataclass
class WorkerProcess:
    """A started process; whoever holds it closes it after its end."""

    process: subprocess.Popen[bytes] | AdoptedProcess
    socket: socket.socket
    watch: int  # readable once the process has ended
    out_of_memory: int  # how many processes the system had ended for that when this one began

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def stopped(self) -> bool:
        """Whether somebody has stopped the process (SIGSTOP), as far as the system tells."""
        try:
            status = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return False
        return status.rpartition(")")[2].split()[0] in "Tt"

    def end(self) -> Death:
        """Kill the process where it still runs, close what it had, and return how it ended."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)  # what a model has started goes too
        self.process.kill()
        code = self.process.wait()
        self.socket.close()
        return _how_it_ended(code, self.out_of_memory)


def spawned(memory: SharedMemory, place: Place | None) -> WorkerProcess:
    """Start a worker for a place; without one it prepares itself, and waits to be given one."""
    ours, theirs = socket_pair()
    with theirs:
        process = _started(memory, place, theirs.fileno())
    return watched(process, ours)


def watched(process: subprocess.Popen[bytes] | AdoptedProcess, ours: socket.socket) -> WorkerProcess:
    return WorkerProcess(process, ours, os.pidfd_open(process.pid), _ended_for_memory())


def _started(memory: SharedMemory, place: Place | None, fd: int) -> subprocess.Popen[bytes]:
    place_words = () if place is None else (place.gpu, place.kind, place.device)
    arguments = [fd, memory.fd, memory.size, *place_words]
    return subprocess.Popen(
        [sys.executable, "-m", "astrarium.serving.live.worker", *map(str, arguments)],
        pass_fds=(fd, memory.fd),
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # a Ctrl-C in the terminal is for the frontend, which then drains
    )


_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def _how_it_ended(code: int, out_of_memory: int) -> Death:
    if code >= 0:
        return Death(f"exited with status {code}")
    if -code == signal.SIGKILL and _ended_for_memory() > out_of_memory:
        return Death("was killed by the system, which ran out of memory")
    return Death(f"was killed by {_name_of(-code)}", -code not in _FROM_OUTSIDE)


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"  # a real-time one has no name


def _ended_for_memory() -> int:
    """Return how many processes this system has ended because memory ran out, as far as it tells."""
    try:
        rows = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(row.split()[1]) for row in rows if row.startswith("oom_kill ")), 0)
