"""The process of a worker: started without a terminal, with one end of a socket, and watched for its end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from astrarium.serving.live.arena import SharedMemory
from astrarium.serving.live.backends.contract import Place
from astrarium.serving.live.messages import LARGEST_MESSAGE


@dataclass
class WorkerProcess:
    """A started process; whoever holds it closes it after its end."""

    process: subprocess.Popen[bytes]
    socket: socket.socket
    watch: int  # readable once the process has ended

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

    def end(self) -> str:
        """Kill the process where it still runs, close what it had, and return how it ended."""
        self.process.kill()
        code = self.process.wait()
        self.socket.close()
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"


def spawned(memory: SharedMemory, place: Place | None) -> WorkerProcess:
    """Start a worker for a place; without one it prepares itself, and waits to be given one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * LARGEST_MESSAGE)
    ours.setblocking(False)
    with theirs:
        process = _started(memory, place, theirs.fileno())
    return WorkerProcess(process, ours, os.pidfd_open(process.pid))


def _started(memory: SharedMemory, place: Place | None, fd: int) -> subprocess.Popen[bytes]:
    told = () if place is None else (place.gpu, place.kind, place.device)
    arguments = [fd, memory.fd, memory.size, *told]
    return subprocess.Popen(
        [sys.executable, "-m", "astrarium.serving.live.worker", *map(str, arguments)],
        pass_fds=(fd, memory.fd),
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # a Ctrl-C in the terminal is for the frontend, which then drains
    )
