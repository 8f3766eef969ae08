"""How a worker's process ended, and what that says of its work."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from astrarium.serving.live.process import Death, WorkerProcess, socket_pair


@pytest.mark.parametrize(
    ("code", "death"),
    [
        ("raise SystemExit(3)", Death("exited with status 3", True)),
        (f"os.kill(os.getpid(), {signal.SIGSEGV:d})", Death("was killed by SIGSEGV", True)),
        (f"os.kill(os.getpid(), {signal.SIGTERM:d})", Death("was killed by SIGTERM", False)),
        ("os.kill(os.getpid(), 40)", Death("was killed by signal 40", True)),
    ],
)
def test_how_a_process_ended_says_whether_its_work_may_have_done_it(code: str, death: Death) -> None:
    process = subprocess.Popen([sys.executable, "-c", f"import os; {code}"], start_new_session=True)
    process.wait()
    assert watched_end(process) == death


def test_what_a_worker_has_started_ends_with_it() -> None:
    child = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid, flush=True); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", child], start_new_session=True, stdout=subprocess.PIPE, stdin=subprocess.PIPE
    )
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    watched_end(process)
    for _ in range(1000):
        if not is_running(pid):
            return
        time.sleep(0.01)
    raise AssertionError("it runs on")


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def watched_end(process: subprocess.Popen[bytes]) -> Death:
    ours, theirs = socket_pair()
    theirs.close()
    return WorkerProcess(process, ours, -1, 1 << 62).end()
