"""Jobs that take and give up GPUs while they run: in virtual time, and as real processes."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from astrarium.cluster.contract import App, AppArrived, GpuFailed, GpuRepaired, Job
from astrarium.cluster.live.backend import JobCommand, RunKey
from astrarium.cluster.live.machine.keeping import job_files
from astrarium.cluster.state import Outcome
from astrarium.core.quantities import SECOND
from astrarium.run import leased
from tests.support.cluster.jobs import Arbiter, arbiter, check_accounts, cluster_file, results
from tests.support.cluster.play import Play, policy

pytestmark = pytest.mark.long
pytest_plugins = ("tests.support.cli_fixtures", "tests.support.cluster.fixtures")


def wide(least: int = 1, most: int = 2) -> App:
    return App(0, "wide", ((Job(0, 60 * SECOND, least, most),),))


def played(elastic: bool = True, leaving: float = 1.0, app: App | None = None) -> Play:
    tasks = {n: JobCommand(("train",), elastic=elastic) for n in range(3)}
    play = Play(policy("fifo"), [app or wide()], leaving, tasks)
    play.backend.resizes = elastic
    play.go(5)
    return play


def shrunk(play: Play) -> None:
    """All but the first GPU fail: it cannot move, and has one less."""
    play.live.step(play.clock.now, [GpuFailed(gpu, "hot", lost=False) for gpu in (1, 2, 3)])


def test_each_run_of_the_books_ends_once_though_the_process_is_one() -> None:
    play = played()
    shrunk(play)
    play.go(0.5)
    assert play.live.state.apps[0].jobs[0].gpus == (0,)
    assert play.live._look().runs.keys() == {RunKey(0, 0, 1)}  # it has not said so yet
    play.go(2)
    assert play.live._look().runs.keys() == {RunKey(0, 0, 2)}
    play.live.step(play.clock.now, [GpuRepaired(1)])
    play.go(200)
    assert play.outcomes() == [Outcome.FINISHED]
    assert play.backend.started == [RunKey(0, 0, 1)]
    assert play.runs == [(0, 0, 1, "resized"), (0, 0, 2, "resized"), (0, 0, 3, "finished")]


def test_gpus_are_others_when_they_were_given_up_and_not_before() -> None:
    play = played(leaving=5.0, app=wide(1, 4))  # over two machines; the fake does not mind
    play.backend.length[1] = 5 * SECOND
    shrunk(play)
    other = App(1, "other", ((Job(0, 5 * SECOND),),))
    play.live.step(play.clock.now, [GpuRepaired(3), AppArrived(other)])
    play.go(300)
    assert play.outcomes() == [Outcome.FINISHED] * 2  # the backend checks that no two are on one GPU


def test_a_wish_that_is_taken_back_before_it_was_heard() -> None:
    play = played(leaving=5.0)
    shrunk(play)
    play.go(1)
    play.live.step(play.clock.now, [GpuRepaired(1)])
    play.go(200)
    assert play.outcomes() == [Outcome.FINISHED]
    assert play.backend.started == [RunKey(0, 0, 1)]
    assert sorted(play.runs) == [(0, 0, 1, "resized"), (0, 0, 2, "unstarted"), (0, 0, 3, "finished")]


def test_an_arbiter_that_dies_in_between_goes_on() -> None:
    for after in (0.5, 1.0, 2.0):
        play = played()
        shrunk(play)
        play.go(after)
        play.die_and_come_back()
        play.go(200)
        assert play.outcomes() == [Outcome.FINISHED]
        assert play.runs == [(0, 0, 1, "resized"), (0, 0, 2, "finished")]


def test_who_is_not_elastic_is_begun_again() -> None:
    play = played(elastic=False)
    shrunk(play)
    play.go(200)
    assert play.backend.started == [RunKey(0, 0, 1), RunKey(0, 0, 2)]
    assert play.runs == [(0, 0, 1, "stopped"), (0, 0, 2, "finished")]


def test_a_job_that_drains_with_a_wish_pending_leaves() -> None:
    play = played(leaving=2.0)
    shrunk(play)
    play.live.drain()
    play.go(0.5)
    play.clock.pass_seconds(5)
    assert play.live.drain()


def test_both_sides_know_the_files_by_the_same_names() -> None:
    assert (job_files.GPUS, job_files.USED) == (leased.GPUS, leased.USED)


SCRIPT = """\
import json, os, sys, time
from astrarium import cluster_job

with cluster_job.session() as session:
    seen = session.restore() or [[os.getpid(), list(session.devices)]]
    for step in session.steps(int(sys.argv[1])):
        if os.path.exists("done"):
            continue
        if sys.argv[2] == "hears" and session.resized():
            seen.append([os.getpid(), list(session.devices)])
        time.sleep(0.05)
        session.checkpoint(seen)
        with open("seen.json.draft", "w") as file:
            json.dump({"seen": seen, "visible": os.environ["CUDA_VISIBLE_DEVICES"]}, file)
        os.replace("seen.json.draft", "seen.json")
    session.result(seen)
"""


def elastic_file(tmp_path: Path, script: Path, how: str, grace: str) -> Path:
    (tmp_path / "elastic.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "elastic.py"), "2000", how]
    app = {"name": "wide", "gpus": 1, "most": 2, "length": "2min", "elastic": True, "command": command}
    live = {"grace": grace, "least": "100ms", "checkpoints": "500ms", "progress": "500ms", "look": "50ms"}
    machines = [{"count": 1, "gpus": 2}]
    file = cluster_file(tmp_path, script, apps=[app], policy={"name": "fifo"}, machines=machines)
    raw = msgspec.yaml.decode(file.read_bytes())
    file.write_bytes(msgspec.yaml.encode({**raw, "live": live}))
    return file


def seen(tmp_path: Path) -> list[Any]:
    path = tmp_path / "seen.json"
    gpus_seen: list[Any] = json.loads(path.read_text())["seen"] if path.exists() else []
    return gpus_seen


def outcomes(one: Arbiter) -> list[Any]:
    return [row[0] for row in one.query("SELECT outcome FROM runs ORDER BY run")]


def test_a_process_hears_of_lost_and_new_gpus(call: Any, home: Path, script: Path, tmp_path: Path) -> None:
    state = ("--state", str(home), "--wait", "60")
    with arbiter(elastic_file(tmp_path, script, "hears", "30s"), home) as one:
        one.start()
        one.waited(lambda: seen(tmp_path), "it runs")
        assert call("cluster", "gpu", "drain", "0:0", *state).code == 0
        one.waited(lambda: outcomes(one) == ["resized", "open"], "it has given one up")
        locks = list(home.glob("locks/gpu-*"))
        assert len(locks) == 2
        one.kill()  # in between, an arbiter may die
        one.start()
        assert call("cluster", "gpu", "retry", "0:0", *state).code == 0
        one.waited(lambda: outcomes(one) == ["resized", "resized", "open"], "it has both")
        (tmp_path / "done").touch()
        one.end()
        check_accounts(one)
        assert outcomes(one) == ["resized", "resized", "finished"]
    [(process, first), (second, fewer), (third, more)] = results(home)["wide", 0]
    assert process == second == third
    assert (first, fewer, sorted(more)) == ([0, 1], [1], [0, 1])
    assert json.loads((tmp_path / "seen.json").read_text())["visible"] == "0,1"


@pytest.mark.thorough
def test_a_job_that_does_not_hear_is_begun_again(call: Any, home: Path, script: Path, tmp_path: Path) -> None:
    with arbiter(elastic_file(tmp_path, script, "deaf", "2s"), home) as one:
        one.start()
        one.waited(lambda: seen(tmp_path), "it runs")
        assert call("cluster", "gpu", "drain", "0:0", "--state", str(home), "--wait", "60").code == 0
        one.waited(lambda: outcomes(one) == ["stopped", "open"], "it was begun again")
        assert one.send(signal.SIGINT) == 0
        assert one.query("SELECT outcome FROM apps") == [("open",)]


TRAIN = """\
import os, time

class Training:
    def __init__(self, values, workers):
        self.x = values["x"]

    def step(self):
        time.sleep(0 if os.path.exists("done") else 0.05)
        return self.x

    def save(self):
        return self.x

    def load(self, state):
        self.x = state

def build(values, workers):
    return Training(values, workers)
"""


@pytest.mark.thorough
def test_a_search_goes_on_with_fewer_and_more_gpus(
    call: Any, home: Path, script: Path, tmp_path: Path
) -> None:
    """It is the same process all the time: only its first run has a log."""
    (tmp_path / "train.py").write_text(TRAIN)
    search = {"name": "successive-halving", "candidates": 2, "iterations": 3000}
    space = {"x": {"low": 0.0, "high": 1.0}}
    raw = {"train": "train.py:build", "goal": "max", "space": space, "search": search, "emulated": {}}
    (tmp_path / "search.yaml").write_bytes(msgspec.yaml.encode(raw))
    file = elastic_file(tmp_path, script, "hears", "30s")
    state = ("--state", str(home), "--wait", "60")
    cluster = msgspec.yaml.decode(file.read_bytes())
    cluster["apps"][0]["command"] = [sys.executable, "-m", "astrarium", "run", "search.yaml"]
    file.write_bytes(msgspec.yaml.encode(cluster))

    def shows(words: str) -> bool:
        return any(words in path.read_text() for path in home.glob("apps/*/job-0/run-*/part-0/log-0.txt"))

    with arbiter(file, home) as one:
        one.start()
        one.waited(lambda: shows("2 of 2 GPUs held"), "it trains on both")
        assert call("cluster", "gpu", "drain", "0:0", *state).code == 0
        one.waited(lambda: outcomes(one) == ["resized", "open"], "it has given one up")
        one.waited(lambda: shows("1 of 1 GPUs held"), "it trains on one")
        assert call("cluster", "gpu", "retry", "0:0", *state).code == 0
        one.waited(lambda: outcomes(one) == ["resized", "resized", "open"], "it has both")
        (tmp_path / "done").touch()
        one.end()
        check_accounts(one)
        assert outcomes(one) == ["resized", "resized", "finished"]
        assert len(list(home.glob("apps/*/job-0/run-*/part-0/log-0.txt"))) == 1
