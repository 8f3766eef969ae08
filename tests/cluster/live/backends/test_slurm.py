"""What is Slurm's own: how jobs are handed over, found again, refused, and what its silence means."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from astrarium.cluster.live.backend import JobCommand, MachineStatus, Order, RunKey, RunPart, RunStatus
from astrarium.cluster.live.backends.slurm import SlurmBackend
from astrarium.core.errors import InputError
from tests.support.cluster.backend import order, result, seen, words
from tests.support.cluster.hosts import waited
from tests.support.cluster.jobs import Arbiter, arbiter, check_accounts, results
from tests.support.cluster.sites.slurm import FakeSlurm

pytest_plugins = ("tests.support.cluster.fixtures",)
KEY = RunKey(0, 0, 1)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSlurm]:
    one = FakeSlurm(tmp_path / "slurm", monkeypatch, {"left": {"gpus": 2}, "right": {"gpus": 2}})
    yield one
    one.close()


def test_nodes_as_slurm_tells_of_them(slurm: FakeSlurm, home: Path) -> None:
    slurm.change(
        "left", gres="gpu:a100:2(S:0-1),gpu:v100:1(S:0),shard:8", features="ib,rack-3", partitions="all,fast"
    )
    one = slurm.backend(home)
    assert one.look().machines == {"left": MachineStatus(3, rack=3), "right": MachineStatus(2)}
    assert list(slurm.backend(home, 2, partition="fast").look().machines) == ["left"]
    slurm.change("left", gres="(null)")
    assert list(slurm.backend(home, 3).look().machines) == ["right"]


@pytest.mark.parametrize(
    ("state", "there"),
    [
        ("MIXED", True),
        ("ALLOCATED+COMPLETING", True),
        ("IDLE+PLANNED", True),
        ("IDLE+CLOUD+POWERED_DOWN", True),
        ("IDLE+DRAIN", False),
        ("MIXED+DRAIN", False),
        ("DOWN", False),
        ("IDLE*", False),
        ("IDLE+NOT_RESPONDING", False),
        ("UNKNOWN+DRAIN+INVALID_REG", False),
        ("IDLE+MAINTENANCE", False),
        ("DOWN*+DRAIN", False),
    ],
)
def test_nodes_that_take_no_jobs_are_not_there(slurm: FakeSlurm, home: Path, state: str, there: bool) -> None:
    slurm.change("left", state=state)
    assert ("left" in slurm.backend(home).look().machines) == there


def test_a_run_is_one_job_with_our_name_pinned_to_its_machines(slurm: FakeSlurm, home: Path) -> None:
    one = slurm.backend(home, partition="gpu", account="lab", options=("--mem-per-gpu=32G",))
    parts = (RunPart("right", (0,)), RunPart("left", (1,)))
    one.start(order(1, JobCommand(("true",)), (2, 1), parts))
    assert seen(one, 1).ended == "finished"
    [submitted] = slurm.submitted()
    assert {
        f"--job-name={one.run_name(KEY)}",
        "--nodelist=right,left",
        "--nodes=2",
        "--gres=gpu:1",
        "--no-requeue",
        "--signal=URG@20",
        "--partition=gpu",
        "--account=lab",
        "--mem-per-gpu=32G",
    } <= set(submitted)
    assert ":" not in submitted


def test_parts_of_unequal_size_make_a_heterogeneous_job(slurm: FakeSlurm, home: Path) -> None:
    """Ranks follow our parts, whatever order Slurm has its nodes in; GPUs are those that Slurm gives."""
    one = slurm.backend(home)
    names = ("RANK", "SLURMD_NODENAME", "CUDA_VISIBLE_DEVICES")
    code = f"import os; print(*(os.environ[name] for name in {names}))"
    parts = (RunPart("right", (0, 1)), RunPart("left", (0,)))
    one.start(order(1, JobCommand((sys.executable, "-c", code)), (2, 3, 0), parts))
    assert seen(one, 1).ended == "finished"
    [submitted] = slurm.submitted()
    cut = submitted.index(":")
    assert {"--nodelist=right", "--gres=gpu:2"} <= set(submitted[:cut])
    assert {"--nodelist=left", "--gres=gpu:1", f"--job-name={one.run_name(KEY)}"} <= set(submitted[cut:])
    logs = sorted(home.glob("apps/*/*/*/part-*/log-*.txt"))
    assert [path.read_text() for path in logs] == ["0 right 0,1\n", "1 left 1\n"]


def test_a_submission_whose_answer_was_lost_is_found_by_its_name(
    slurm: FakeSlurm, home: Path, script: Path
) -> None:
    (slurm.folder / "late").touch()
    one = slurm.backend(home)
    one.start(order(1, JobCommand(words(script))))
    assert seen(one, 1).ended == "finished"
    assert len(slurm.submitted()) == 1


def test_a_run_that_was_handed_over_twice_runs_once(slurm: FakeSlurm, home: Path, tmp_path: Path) -> None:
    """As if an arbiter died while sbatch waited for a slow controller, which hears the next one first."""
    code = "import time; open('times', 'a').write('x'); time.sleep(1)"
    task = JobCommand((sys.executable, "-c", code), directory=str(tmp_path))
    one = slurm.backend(home)
    one.start(order(1, task, (0,)))
    waited(lambda: (tmp_path / "times").exists())
    subprocess.run(["sbatch", *slurm.submitted()[0]], check=True, capture_output=True)
    assert seen(one, 1) == RunStatus((0,), "finished", 0.0, 0.0)
    waited(lambda: [job["state"] for job in slurm.jobs()] == ["COMPLETED", "COMPLETED"])
    assert (tmp_path / "times").read_text() == "x"


def test_an_arbiter_that_died_before_it_handed_a_run_over(slurm: FakeSlurm, home: Path, script: Path) -> None:
    (slurm.folder / "down").touch()
    with pytest.raises(InputError, match=r"a Slurm that answers .*Unable to contact slurm controller"):
        slurm.backend(home)
    (slurm.folder / "down").unlink()
    one = slurm.backend(home)
    ordered = order(1, JobCommand(words(script)))
    (slurm.folder / "down").touch()
    one.start(ordered)
    waited(lambda: one.look().runs == {KEY: RunStatus((0,))} and not slurm.jobs())
    one.close()
    (slurm.folder / "down").unlink()
    another = slurm.backend(home, 2)
    assert not another.look().runs  # it is not there, and will be ordered again if the books want it
    another.start(ordered)
    assert seen(another, 1).ended == "finished"
    assert len(slurm.jobs()) == 1


def test_while_the_controller_is_silent_nothing_is_lost(slurm: FakeSlurm, home: Path, script: Path) -> None:
    one = slurm.backend(home)
    one.start(order(1, JobCommand(words(script, 60, 0.05))))
    seen(one, 1, lambda run: run.progress > 0.05)
    (slurm.folder / "down").touch()
    before = one.look()
    one.start(Order(RunKey(0, 1, 1), "app", (2,), (RunPart("right", (0,)),), JobCommand(words(script, 5))))
    now = waited(
        lambda: (snapshot := one.look()).runs[KEY].progress > before.runs[KEY].progress + 0.2 and snapshot
    )
    assert now.machines == before.machines
    assert now.runs[RunKey(0, 1, 1)] == RunStatus((2,))
    one.stop(KEY)  # is heard through its folder
    assert seen(one, 1).ended == "stopped"
    assert len(slurm.jobs()) == 1
    (slurm.folder / "down").unlink()
    assert waited(lambda: one.look().runs[RunKey(0, 1, 1)].ended) == "finished"


def test_a_wish_that_a_silent_controller_did_not_hear_is_told_again(slurm: FakeSlurm, home: Path) -> None:
    one = slurm.backend(home)
    slurm.occupy("left", 2)
    one.start(order(1, JobCommand(("true",))))
    waited(lambda: len(slurm.jobs()) == 2)
    (slurm.folder / "down").touch()
    one.stop(KEY)
    assert one.look().runs == {KEY: RunStatus((0,))}
    (slurm.folder / "down").unlink()
    assert seen(one, 1).ended == "unstarted"


def test_a_job_that_slurm_refuses_has_failed_in_its_words(slurm: FakeSlurm, home: Path) -> None:
    (slurm.folder / "refuse").write_text("Invalid account or account/partition combination specified")
    one = slurm.backend(home)
    one.start(order(1, JobCommand(("true",))))
    status = seen(one, 1)
    assert status.ended == "failed"
    assert status.error.endswith("Invalid account or account/partition combination specified")


def test_a_keeper_that_cannot_be_started_has_failed_with_the_words_of_the_log(
    slurm: FakeSlurm, home: Path
) -> None:
    one = slurm.backend(home)
    (home / "keeping" / "__main__.py").write_text("raise SystemExit('no disk')")
    one.start(order(1, JobCommand(("true",))))
    status = seen(one, 1)
    assert (status.ended, status.error) == (
        "failed",
        "FAILED, srun: error: left: task 0: Exited with exit code 1",
    )


def test_a_job_that_somebody_else_cancels_is_lost_and_keeps_its_checkpoint(
    slurm: FakeSlurm, home: Path, script: Path
) -> None:
    one = slurm.backend(home)
    one.start(order(1, JobCommand(words(script, 40, 0.05))))
    seen(one, 1, lambda run: run.progress > 0.1)
    subprocess.run(["scancel", f"--name={one.run_name(KEY)}"], check=True)
    status = seen(one, 1)
    assert (status.ended, status.error) == ("lost", "Slurm has ended it")
    assert status.kept > 0.1
    one.forget(KEY)
    one.start(order(2, JobCommand(words(script, 40, 0.05))))
    assert seen(one, 2).ended == "finished"
    assert result(home) == {"sum": sum(n * n for n in range(40)), "count": 40}


def test_a_run_on_a_node_that_is_drained_can_still_be_stopped(
    slurm: FakeSlurm, home: Path, script: Path
) -> None:
    one = slurm.backend(home)
    one.start(order(1, JobCommand(words(script, 100, 0.05))))
    seen(one, 1, lambda run: run.progress > 0.05)
    slurm.change("left", state="MIXED+DRAIN")
    waited(lambda: "left" not in one.look().machines)
    assert one.look().runs[KEY].ended == ""
    one.stop(KEY)
    status = seen(one, 1)
    assert (status.ended, status.kept > 0.05) == ("stopped", True)


@pytest.mark.parametrize(
    "option", ["--nodelist=a", "-w a", "--requeue", "--no-requeue", "-Jmine", "mem=3", "--gres=x:1"]
)
def test_options_that_are_ours_are_refused(slurm: FakeSlurm, home: Path, option: str) -> None:
    with pytest.raises(InputError, match=r"live\.options: expected options of sbatch"):
        SlurmBackend(home, options=(option,))


def test_what_is_missing_is_named(slurm: FakeSlurm, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        InputError, match=r"live\.partition: expected a partition of this Slurm .*\(got 'fast'\)"
    ):
        slurm.backend(home, partition="fast")
    (slurm.folder / "bin" / "squeue").unlink()
    monkeypatch.setenv("PATH", str(slurm.folder / "bin"))
    with pytest.raises(InputError, match=r"live\.backend: expected a machine on which .*; squeue is not"):
        SlurmBackend(home)


TEXT = """\
machines: [{{count: 2, gpus: 2}}]
apps:
  - {{name: wide, gpus: 4, length: 3s, command: {command} 60 0.05}}
  - {{name: small, count: 2, every: 1s, length: 3s, arrival: 1s, command: {command} 40 0.05}}
policy: {{name: tiresias, lease: 4s}}
live: {{backend: slurm, patience: 2s, least: 500ms}}
"""


@pytest.mark.thorough
def test_an_arbiter_that_is_killed_and_drained_on_slurm(
    slurm: FakeSlurm, home: Path, script: Path, tmp_path: Path
) -> None:
    file = tmp_path / "slurm.yaml"
    file.write_text(TEXT.format(command=shlex.join([sys.executable, str(script)])))
    with arbiter(file, home) as one:
        one.start()
        one.waited(partial(_has_run, one), "a job runs")
        one.kill()
        one.start()
        one.waited(
            lambda: one.query("SELECT * FROM meta WHERE key = 'epoch' AND value = 2"), "another arbiter"
        )
        one.waited(lambda: one.query("SELECT * FROM runs WHERE outcome IN ('stopped', 'finished')"), "an end")
        assert one.send(signal.SIGINT) == 0, one.words.read_text()
        assert not [job for job in slurm.jobs() if job["state"] in ("PENDING", "RUNNING")]
        one.start()
        one.end()
        check_accounts(one)
    counts = {("wide", 0): 60, ("small-0", 0): 40, ("small-1", 0): 40}
    assert results(home) == {
        key: {"sum": sum(n * n for n in range(total)), "count": total} for key, total in counts.items()
    }
    assert len({json.dumps(words) for words in slurm.submitted()}) == len(slurm.jobs())


def _has_run(one: Arbiter) -> list[Path]:
    return list(one.home.glob("apps/*/job-*/run-*/ready"))
