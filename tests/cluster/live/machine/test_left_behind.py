"""What jobs, agents and machines leave behind, whole or torn, troubles nobody who comes after them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from astrarium.cluster.live.backend import Ending, JobCommand, MachineStatus, RunKey, RunPart, RunStatus
from astrarium.cluster.live.backends.local import LocalBackend
from astrarium.cluster.live.machine.agent import MachineAgent
from astrarium.cluster.live.machine.keeping import descendants
from astrarium.cluster.live.machine.keeping.records import OUTCOME
from tests.support.cluster.backend import backend, order, seen, words

pytest_plugins = ("tests.support.cluster.fixtures",)


def test_nothing_that_a_job_has_started_outlives_it(home: Path, tmp_path: Path) -> None:
    """A shell that is ended leaves the program in it behind: it would still use the GPUs."""
    code = ("bash", "-c", "sleep 300 & echo $! > left; wait; true")
    one = backend(home)
    one.start(order(1, JobCommand(code, on_stop="restart", directory=str(tmp_path))))
    seen(one, 1, lambda run: (tmp_path / "left").exists() and (tmp_path / "left").read_text() != "")
    one.stop(RunKey(0, 0, 1))
    assert seen(one, 1).ended == "stopped"
    path = Path("/proc", (tmp_path / "left").read_text().strip(), "stat")
    seen(one, 1, lambda run: not path.exists() or path.read_text().split()[2] == "Z")


def test_what_a_job_puts_into_its_folder_troubles_nobody(home: Path) -> None:
    """A file of our name with something else in it; a folder as a checkpoint."""
    code = (
        "import os, pathlib; at = pathlib.Path(os.environ['ASTRARIUM_FOLDER']);"
        "(at / 'progress.json').write_text('[1]'); (at / 'checkpoint').mkdir(); raise SystemExit(1)"
    )
    one = backend(home)
    for run in (1, 2, 3):
        one.start(order(run, JobCommand((sys.executable, "-c", code))))
        assert seen(one, run) == RunStatus((0,), "failed", error="exit code 1")
    assert len(list(home.glob("apps/*/*/*/checkpoint"))) == 2  # the newest before the third, and its own


def test_half_an_order_is_a_run_that_was_lost(home: Path, script: Path) -> None:
    one = backend(home)
    task = JobCommand(words(script))
    one.start(order(1, task))
    seen(one, 1)
    [path] = home.glob("orders/*/*/*/*/order.json")
    path.write_text('{"part": {"ord')
    (path.parent / "outcome.json").unlink()
    another = backend(home)  # as after the power was gone
    another.start(order(1, task))
    assert seen(another, 1).ended == "lost"


def test_a_machine_that_is_no_longer_in_the_file_is_cleared(home: Path, script: Path) -> None:
    one = backend(home)
    one.start(order(1, JobCommand(words(script, 5000, 0.02)), (3,), (RunPart("right", (1,)),)))
    seen(one, 1, lambda run: run.progress > 0)
    fewer = LocalBackend(home, {"left": MachineStatus(2)})
    assert not fewer.look().runs
    assert seen(one, 1).ended == "stopped"


def test_a_checkpoint_that_cannot_be_read_is_named(script: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    bad = tmp_path / "kept" / "checkpoint"
    bad.write_bytes(b"torn")
    env = {**os.environ, "ASTRARIUM_FOLDER": str(bad.parent)}
    done = subprocess.run(words(script, 2, 0.0), env=env, timeout=60, capture_output=True, text=True)
    assert done.returncode == 1
    assert f"the checkpoint {bad} cannot be read: remove it" in done.stderr.splitlines()[-1]


def test_a_number_that_is_anothers_by_now_is_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of processes come again: one that was a child at the first look is nobody's at the second."""
    with subprocess.Popen(["sleep", "60"]) as bystander, subprocess.Popen(["sleep", "60"]) as child:
        looks: Iterator[list[int]] = iter([[child.pid, bystander.pid], [child.pid]])
        monkeypatch.setattr(descendants, "_children", lambda process, folder: next(looks, []))
        descendants.end_descendants()
        assert child.wait(10) == -signal.SIGKILL
        assert bystander.poll() is None
        bystander.kill()


def test_what_is_known_of_a_run_that_has_ended_is_what_it_told_last(
    home: Path, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checkpoint once was not counted if it ended between two looks into its folder."""
    one = backend(home)
    looked_at = MachineAgent._ending

    def ended_by_then(self: MachineAgent, key: RunKey, folder: Path) -> tuple[Ending, str]:
        while not (folder / OUTCOME).exists():
            time.sleep(0.01)
        return looked_at(self, key, folder)

    one.start(order(1, JobCommand(words(script, 20, 0.05))))
    monkeypatch.setattr(MachineAgent, "_ending", ended_by_then)
    status = one.look().runs[RunKey(0, 0, 1)]
    assert (status.ended, status.kept) == ("finished", 1.0)
