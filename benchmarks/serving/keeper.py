"""Run a command and see to it that nothing of it stays behind: python keeper.py COMMAND...

Processes that leave the command's process group, or whose parents die, come back to this one (it is their
subreaper) and are ended with the rest: when the command ends, on SIGTERM, and when our own parent dies.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from processes import descendants

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PATIENCE_S = 8.0  # for a server that drains
AFTERMATH_S = 2.0  # for its other processes, once it has gone


def main() -> int:
    parent = os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if os.getppid() != parent:  # it died before we asked to be told
        return 1
    command = subprocess.Popen(sys.argv[1:], start_new_session=True)
    try:
        return command.wait()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        end(command.pid)


def end(command: int) -> None:
    """Ask the command, which may know how to stop what it started; what is left then is killed."""
    signal_to(command, signal.SIGTERM)
    wait_while(lambda: command in living(), PATIENCE_S)
    wait_while(lambda: bool(living()), AFTERMATH_S)
    while left := living():
        for pid in left:
            signal_to(pid, signal.SIGKILL)
        time.sleep(0.02)


def wait_while(condition: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while condition() and time.monotonic() < end:
        time.sleep(0.02)


def living() -> list[int]:
    """All that descends from here, after those that have died were collected."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return []
    return descendants(os.getpid())


def signal_to(pid: int, number: signal.Signals) -> None:
    if pid in living():
        with suppress(ProcessLookupError):
            os.kill(pid, number)


if __name__ == "__main__":
    sys.exit(main())
