"""Jobs as processes of this machine: started, stopped, lost, begun again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from astrarium.cluster.live.backend import JobCommand, MachineStatus, Order, RunKey, RunPart, RunStatus
from astrarium.cluster.live.backends.local import LocalBackend
from astrarium.cluster.live.machine.folders import part_folder
from astrarium.cluster_job import STOPPED
from tests.support.cluster.backend import backend, order, result, seen, words
from tests.support.cluster.jobs import end_keepers

pytest_plugins = ("tests.support.cluster.fixtures",)


def test_a_job_runs_to_its_end(home: Path, script: Path) -> None:
    one = backend(home)
    one.start(order(1, JobCommand(words(script))))
    assert seen(one, 1) == RunStatus((0,), "finished", 1.0, 1.0)
    assert result(home) == {"sum": sum(n * n for n in range(20)), "count": 20}
    one.forget(RunKey(0, 0, 1))
    assert not one.look().runs
    assert not backend(home).look().runs


def test_a_job_that_is_stopped_goes_on_where_it_was(home: Path, script: Path) -> None:
    one = backend(home)
    task = JobCommand(words(script, 30, 0.05))
    one.start(order(1, task))
    seen(one, 1, lambda run: run.progress > 0.1)
    one.stop(RunKey(0, 0, 1))
    first = seen(one, 1)
    assert first.ended == "stopped"
    assert 0.1 <= first.kept < 1
    one.start(order(2, task, (1,)))
    assert seen(one, 2, lambda run: bool(run.ended) or run.kept >= first.kept).kept >= first.kept
    assert seen(one, 2).ended == "finished"
    assert result(home) == {"sum": sum(n * n for n in range(30)), "count": 30}


def test_a_job_that_is_asked_before_it_is_up_still_gets_somewhere(home: Path, script: Path) -> None:
    one = backend(home)
    one.start(order(1, JobCommand(words(script, 50, 0.02))))
    one.stop(RunKey(0, 0, 1))
    assert seen(one, 1).kept > 0


def test_what_a_lost_part_leaves_is_told_while_others_still_write(home: Path) -> None:
    ordered = order(2, JobCommand(("true",)))
    before = part_folder(home, order(1, ordered.task), 0)
    run = part_folder(home, ordered, 0)
    for folder, kept in ((before, 0.2), (run, 0.4)):
        folder.mkdir(parents=True)
        claims = {"progress": 0.5, "kept": kept, "stamp": [1, 1]}
        (folder / "told.json").write_text(json.dumps(claims))
    assert backend(home).kept(ordered) == 0.4
    (run / "told.json").unlink()
    assert backend(home).kept(ordered) == 0.2


def test_an_order_is_carried_out_once(home: Path, script: Path) -> None:
    task = JobCommand((sys.executable, "-c", "open('times', 'a').write('x')"), directory=str(script.parent))
    one = backend(home)
    one.start(order(1, task))
    one.start(order(1, task))
    another = backend(home)  # as after a restart
    another.start(order(1, task))
    assert seen(another, 1).ended == "finished"
    assert (script.parent / "times").read_text() == "x"


def test_a_command_that_knows_nothing_is_ended_and_begun_anew(home: Path) -> None:
    one = backend(home)
    task = JobCommand((sys.executable, "-c", "import time; time.sleep(60)"), on_stop="restart")
    one.start(order(1, task))
    one.stop(RunKey(0, 0, 1))
    assert seen(one, 1) == RunStatus((0,), "stopped")


def test_a_command_that_does_not_listen_is_made_to_leave(home: Path) -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    one = backend(home, grace=0.3)
    one.start(order(1, JobCommand((sys.executable, "-c", code), on_stop="restart")))
    one.stop(RunKey(0, 0, 1))
    assert seen(one, 1).ended == "stopped"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("raise SystemExit('it is over')", "exit code 1, it is over"),
        ("import os; os.kill(os.getpid(), 9)", "killed by SIGKILL"),
        ("print('x' * 10**6); raise SystemExit('at the end of much')", "exit code 1, at the end of much"),
    ],
)
def test_a_job_that_fails_has_last_words(home: Path, code: str, expected: str) -> None:
    one = backend(home)
    one.start(order(1, JobCommand((sys.executable, "-c", code))))
    status = seen(one, 1)
    assert status.ended == "failed"
    assert expected in status.error


@pytest.mark.parametrize(
    ("task", "ended", "expected"),
    [
        (
            JobCommand(("no-such-program",)),
            "not found",
            "exit code 127, [Errno 2] No such file or directory: 'no-su",
        ),
        (JobCommand(("sh", "-c", "no-such-program")), "not found", "no-such-program"),
        (JobCommand(("true",), directory="/no/such/folder"), "not found", "/no/such/folder"),
        (JobCommand(("true",), env={"A=B": "x"}), "failed", "illegal environment variable name"),
        (JobCommand(("true", "zero\0byte")), "failed", "embedded null byte"),
    ],
)
def test_a_command_that_cannot_be_started_fails(
    home: Path, task: JobCommand, ended: str, expected: str
) -> None:
    one = backend(home)
    one.start(order(1, task))
    status = seen(one, 1)
    assert status.ended == ended
    assert expected in status.error


def test_a_command_that_is_not_found_fails_where_nothing_else_is_found_either(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its keeper says so, whatever PATH is, and was not killed."""
    monkeypatch.setenv("PATH", str(tmp_path))
    one = backend(home)
    one.start(order(1, JobCommand(("true",), processes="gpu"), (0, 1)))
    status = seen(one, 1)
    assert status.ended == "not found"
    assert "'true'" in status.error


def test_of_a_gang_the_words_are_those_of_who_failed_first(home: Path) -> None:
    """Not of those who were ended for it, nor of rank 10 in place of rank 2."""
    code = (
        "import os, time; rank = int(os.environ['RANK']); print(f'rank {rank} was here', flush=True);"
        "time.sleep(60 if rank != 2 else 0.5); raise SystemExit(3)"
    )
    one = LocalBackend(home, {"left": MachineStatus(12)})
    gpus = tuple(range(12))
    one.start(order(1, JobCommand((sys.executable, "-S", "-c", code), "restart", "gpu"), gpus))
    assert seen(one, 1).error == "exit code 3, rank 2 was here"


def test_a_keeper_that_is_killed_takes_its_job_along(home: Path, script: Path) -> None:
    one = backend(home)
    task = JobCommand(words(script, 2000, 0.05))
    one.start(order(1, task))
    seen(one, 1, lambda run: run.progress > 0)
    end_keepers(home)
    assert seen(one, 1).ended == "lost"
    one.start(order(2, JobCommand(words(script, 20))))  # the locks of the first are free again
    assert seen(one, 2).ended == "finished"


def test_two_jobs_never_share_a_gpu_whatever_is_ordered(home: Path, script: Path) -> None:
    """The arbiter never orders that; if it did, the second would wait."""
    one = backend(home)
    other = RunKey(1, 0, 1)
    one.start(order(1, JobCommand(words(script, 40, 0.05))))
    seen(one, 1, lambda run: run.progress > 0)
    one.start(Order(other, "other", (0,), (RunPart("left", (0,)),), JobCommand(words(script, 1))))
    seen(one, 1, lambda run: run.progress > 0.3)
    assert one.look().runs[other] == RunStatus((0,))
    assert seen(one, 1).ended == "finished"


def test_a_gang_knows_its_ranks_and_dies_as_one(home: Path, tmp_path: Path) -> None:
    names = (
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "CUDA_VISIBLE_DEVICES",
        "MASTER_ADDR",
        "ASTRARIUM_GPUS",
        "MINE",
    )
    code = (
        f"import os, json, time; v = {{n: os.environ[n] for n in {names}}};"
        "open('rank-' + v['RANK'], 'w').write(json.dumps(v)); time.sleep(0.2 if v['RANK'] == '2' else 60);"
        "raise SystemExit(3)"
    )
    task = JobCommand((sys.executable, "-c", code), "restart", "gpu", {"MINE": "yes"}, str(tmp_path))
    parts = (RunPart("left", (0, 1)), RunPart("right", (1,)))
    one = backend(home)
    one.start(order(1, task, (0, 1, 3), parts))
    status = seen(one, 1)
    assert (status.ended, status.error) == ("failed", "exit code 3")
    ranks = [json.loads((tmp_path / f"rank-{rank}").read_text()) for rank in range(3)]
    assert [row["CUDA_VISIBLE_DEVICES"] for row in ranks] == ["0", "1", "3"]
    assert [row["LOCAL_RANK"] for row in ranks] == ["0", "1", "0"]
    assert {(row["WORLD_SIZE"], row["MASTER_ADDR"], row["MINE"]) for row in ranks} == {
        ("3", "127.0.0.1", "yes")
    }


@pytest.mark.parametrize(("processes", "count"), [("machine", 2), ("job", 1)])
def test_one_process_for_a_machine_or_a_job(home: Path, tmp_path: Path, processes: Any, count: int) -> None:
    code = "import os; open('at-' + os.environ['RANK'], 'w').write(os.environ['CUDA_VISIBLE_DEVICES'])"
    task = JobCommand((sys.executable, "-c", code), "restart", processes, directory=str(tmp_path))
    one = backend(home)
    one.start(order(1, task, (0, 1, 2, 3), (RunPart("left", (0, 1)), RunPart("right", (0, 1)))))
    assert seen(one, 1).ended == "finished"
    assert [path.read_text() for path in sorted(tmp_path.glob("at-*"))] == ["0,1", "2,3"][:count]


AGENT = """\
import sys, time
from astrarium.cluster.live.backend import Order, RunPart, RunKey, JobCommand
from astrarium.cluster.live.machine.agent import MachineAgent, PartOrder
order = Order(RunKey(0, 0, 1), "app", (0,), (RunPart("left", (0,)),), JobCommand(tuple(sys.argv[2:])))
agent = MachineAgent(sys.argv[1], "left", with_agent=True)
agent.start(PartOrder(order, 0))
time.sleep(300)
"""


def test_what_an_agent_of_a_machine_runs_ends_with_it(home: Path, script: Path) -> None:
    agent = subprocess.Popen([sys.executable, "-c", AGENT, str(home), *words(script, 5000, 0.05)])
    ends = time.monotonic() + 60
    while not list(home.glob("apps/*/*/*/ready")) and time.monotonic() < ends:
        time.sleep(0.05)
    agent.kill()
    agent.wait()
    while not list(home.glob("orders/*/*/*/*/outcome.json")) and time.monotonic() < ends:
        time.sleep(0.05)
    [outcome] = home.glob("orders/*/*/*/*/outcome.json")
    expected = {"codes": [-signal.SIGKILL], "asked": False, "first": 0}
    assert json.loads(outcome.read_text()).items() >= expected.items()


def test_a_session_by_itself(script: Path, tmp_path: Path) -> None:
    """Outside a cluster the script is as it is; asked to stop, it leaves with a checkpoint."""
    env = {**os.environ, "ASTRARIUM_FOLDER": str(tmp_path / "kept")}
    first = subprocess.Popen(words(script, 200, 0.02), env=env)
    ends = time.monotonic() + 60
    while not (tmp_path / "kept" / "ready").exists() and time.monotonic() < ends:
        time.sleep(0.02)
    first.send_signal(signal.SIGTERM)
    assert first.wait(60) == STOPPED
    assert subprocess.run(words(script, 200, 0.0), env=env, timeout=60).returncode == 0
    assert json.loads((tmp_path / "kept" / "result.json").read_text())["count"] == 200
