"""Jobs that the kernel killed for memory, and who goes first."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from astrarium.cluster.live.backend import JobCommand, RunKey
from astrarium.cluster.live.machine.outcome import Outcome, ending
from tests.support.cluster.backend import backend, order, seen

pytest_plugins = ("tests.support.cluster.fixtures",)


@pytest.mark.parametrize(
    ("code", "oom", "expected"),
    [
        (-9, 0, "killed by SIGKILL (out of memory?)"),
        (-9, 2, "killed by SIGKILL (out of memory: the kernel killed 2 here meanwhile)"),
        (137, 1, "exit code 137 (out of memory: the kernel killed 1 here meanwhile)"),
        (-15, 1, "killed by SIGTERM"),
        (1, 1, "exit code 1"),
    ],
)
def test_a_job_that_the_kernel_killed_is_told_as_such(code: int, oom: int, expected: str) -> None:
    assert ending(Outcome([code], False, 0, oom)) == ("failed", expected)


def test_jobs_go_first_where_memory_is_full(home: Path) -> None:
    one = backend(home)
    one.start(order(1, JobCommand(("cat", "/proc/self/oom_score_adj"))))
    seen(one, 1)
    [log] = home.glob("apps/*/*/*/*/log-0.txt")
    ours = int(Path("/proc/self/oom_score_adj").read_text())
    assert int(log.read_text()) == min(1000, ours + 200)


def test_of_a_gang_that_was_asked_to_leave_all_have_the_time(home: Path, tmp_path: Path) -> None:
    """The last one is not ended because the others were faster."""
    code = (
        "import os, signal, sys, time; rank = os.environ['RANK']\n"
        "def leave(*_):\n"
        "    time.sleep(4 if rank == '0' else 0); open('left-' + rank, 'w').close(); os._exit(75)\n"
        "signal.signal(signal.SIGTERM, leave); open('up-' + rank, 'w').close(); time.sleep(300)\n"
    )
    task = JobCommand((sys.executable, "-c", code), "restart", "gpu", directory=str(tmp_path))
    one = backend(home)
    one.start(order(1, task, (0, 1)))
    seen(one, 1, lambda run: len(list(tmp_path.glob("up-*"))) == 2)
    one.stop(RunKey(0, 0, 1))
    assert seen(one, 1).ended == "stopped"
    assert len(list(tmp_path.glob("left-*"))) == 2
